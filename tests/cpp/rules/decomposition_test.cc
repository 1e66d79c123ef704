// SPDX-License-Identifier: Apache-2.0
// Decompositions against the reference interpreter: of the op itself where the interpreter knows
// it, of gradients against differences of the forward op's decomposition everywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/ir/verifier.h"
#include "csrc/reference/interpreter.h"
#include "csrc/rules/builder.h"
#include "tests/cpp/rules/one_op.h"

namespace spmd::rules {
namespace {

using Literals = std::vector<reference::Literal>;

reference::Literal RandomLiteral(const TensorType& type, std::mt19937& rng) {
  reference::Literal literal{type, {}};
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> small(0, 3);
  for (int64_t i = 0; i < type.NumElements(); ++i) {
    const double x = IsFloating(type.dtype)       ? normal(rng)
                     : type.dtype == DType::kBool ? small(rng) > 0
                                                  : small(rng);
    literal.data.push_back(type.dtype == DType::kF32 ? static_cast<float>(x) : x);
  }
  return literal;
}

Literals RandomInputs(const ir::Graph& graph, std::mt19937& rng) {
  Literals inputs;
  for (ir::ValueId v : graph.inputs()) inputs.push_back(RandomLiteral(graph.type(v), rng));
  return inputs;
}

Literals Evaluate(const ir::Graph& graph, const Literals& inputs) {
  EXPECT_TRUE(ir::Verify(graph).ok()) << ir::Verify(graph) << graph.ToString();
  absl::StatusOr<Literals> results = reference::Interpret(graph, inputs);
  EXPECT_TRUE(results.ok()) << results.status() << "\n" << graph.ToString();
  return results.ok() ? *std::move(results) : Literals();
}

void ExpectNear(const reference::Literal& a, const reference::Literal& b, double tolerance,
                const std::string& what) {
  ASSERT_EQ(a.type, b.type) << what;
  for (size_t i = 0; i < a.data.size(); ++i) {
    if (std::isnan(a.data[i]) && std::isnan(b.data[i])) continue;
    if (a.data[i] == b.data[i]) continue;  // infinities
    ASSERT_NEAR(a.data[i], b.data[i], tolerance * (1 + std::abs(a.data[i]))) << what << " at " << i;
  }
}

class SameMeaning : public testing::TestWithParam<const char*> {};

TEST_P(SameMeaning, AsTheOp) {
  std::mt19937 rng(7);
  const OneOp op(GetParam());
  for (int round = 0; round < 5; ++round) {
    const Literals inputs = RandomInputs(op.graph(), rng);
    const Literals want = Evaluate(op.graph(), inputs), got = Evaluate(op.Decomposed(), inputs);
    ASSERT_EQ(want.size(), got.size());
    for (size_t k = 0; k < want.size(); ++k) ExpectNear(want[k], got[k], 1e-5, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Reductions, SameMeaning,
    testing::Values(
        "f32[3,4] = aten::mean.dim(f32[3,4,5], dim=[2], keepdim=false, dtype=none)",
        "f32[1,4,1] = aten::mean.dim(f32[3,4,5], dim=[0,-1], keepdim=true, dtype=none)",
        "f32[] = aten::mean(f32[3,4], dtype=none)",
        "f32[3,5] = aten::var.correction(f32[3,4,5], dim=[1], correction=1, keepdim=false)",
        "f32[3,1,5] = aten::std.correction(f32[3,4,5], dim=[1], correction=0, keepdim=true)",
        "f32[3], f32[3] = aten::var_mean.correction(f32[3,4,5], dim=[1,2], correction=1, "
        "keepdim=false)",
        "f32[3] = aten::linalg_vector_norm(f32[3,4], ord=2, dim=[1], keepdim=false, dtype=none)",
        "f32[3] = aten::linalg_vector_norm(f32[3,4], ord=3, dim=[1], keepdim=false, dtype=none)",
        "f32[3] = aten::linalg_vector_norm(f32[3,4], ord=inf, dim=[1], keepdim=false, dtype=none)",
        "f32[3] = aten::logsumexp(f32[3,4], dim=[1], keepdim=false)",
        "i64[3] = aten::argmax(f32[3,4], dim=1, keepdim=false)",
        "i64[] = aten::argmin(f32[3,4], dim=none, keepdim=false)",
        "i64[3] = aten::argmax(i64[3,9], dim=1, keepdim=false)",
        "f32[3,1], i64[3,1] = aten::max.dim(f32[3,4], dim=-1, keepdim=true)",
        "i32[4], i64[4] = aten::min.dim(i32[9,4], dim=0, keepdim=false)",
        "f32[3], f32[3] = aten::aminmax(f32[3,4], dim=1, keepdim=false)"));

INSTANTIATE_TEST_SUITE_P(
    Softmax, SameMeaning,
    testing::Values("f32[3,4,5] = aten::_softmax(f32[3,4,5], dim=1, half_to_float=false)",
                    "f32[3,4] = aten::_log_softmax(f32[3,4], dim=-1, half_to_float=false)",
                    "f32[3,4] = aten::_softmax_backward_data(f32[3,4], f32[3,4], dim=1, "
                    "input_dtype=f32)",
                    "f32[3,4] = aten::_log_softmax_backward_data(f32[3,4], f32[3,4], dim=0, "
                    "input_dtype=f32)"));

INSTANTIATE_TEST_SUITE_P(
    LayerNorm, SameMeaning,
    testing::Values("f32[3,4,5], f32[3,4,1], f32[3,4,1] = aten::native_layer_norm(f32[3,4,5], "
                    "f32[5], f32[5], normalized_shape=[5], eps=1e-05)",
                    "f32[3,4,5], f32[3,1,1], f32[3,1,1] = aten::native_layer_norm(f32[3,4,5], "
                    "_, _, normalized_shape=[4,5], eps=0.01)"));

// A rank-2 batch norm without weights normalises columns as layer norm does rows.
TEST(BatchNorm, NormalisesChannelsAsLayerNormDoesRows) {
  std::mt19937 rng(3);
  const OneOp batch(
      "f64[4,3], f64[3], f64[3] = aten::_native_batch_norm_legit.no_stats(f64[4,3], "
      "_, _, training=true, momentum=0.1, eps=1e-05)");
  const OneOp layer(
      "f64[3,4], f64[3,1], f64[3,1] = aten::native_layer_norm(f64[3,4], _, _, "
      "normalized_shape=[4], eps=1e-05)");
  const Literals x = RandomInputs(batch.graph(), rng);
  Literals transposed = {{layer.graph().type(0), std::vector<double>(12)}};
  for (int n = 0; n < 4; ++n) {
    for (int c = 0; c < 3; ++c) transposed[0].data[c * 4 + n] = x[0].data[n * 3 + c];
  }
  const Literals a = Evaluate(batch.Decomposed(), x), b = Evaluate(layer.graph(), transposed);
  for (int n = 0; n < 4; ++n) {
    for (int c = 0; c < 3; ++c) EXPECT_NEAR(a[0].data[n * 3 + c], b[0].data[c * 4 + n], 1e-9);
  }
  for (int c = 0; c < 3; ++c) {
    EXPECT_NEAR(a[1].data[c], b[1].data[c], 1e-9);
    EXPECT_NEAR(a[2].data[c], b[2].data[c], 1e-9);
  }
}

TEST(BatchNorm, RunningStatisticsMoveTowardsTheBatch) {
  const OneOp op(
      "f64[2,1], f64[1], f64[1], f64[1], f64[1] = "
      "aten::_native_batch_norm_legit_functional(f64[2,1], _, _, f64[1], f64[1], "
      "training=true, momentum=0.25, eps=0.0)");
  const TensorType one{DType::kF64, {1}};
  const Literals out =
      Evaluate(op.Decomposed(), {{{DType::kF64, {2, 1}}, {1, 5}}, {one, {10}}, {one, {2}}});
  EXPECT_THAT(out[0].data, testing::ElementsAre(-1, 1));
  EXPECT_THAT(out[1].data, testing::ElementsAre(3));
  EXPECT_THAT(out[2].data, testing::ElementsAre(0.5));
  EXPECT_THAT(out[3].data, testing::ElementsAre(0.75 * 10 + 0.25 * 3));
  EXPECT_THAT(out[4].data, testing::ElementsAre(0.75 * 2 + 0.25 * 8));  // unbiased variance
}

// One group and no weights: layer norm over all but the first dimension.
TEST(GroupNorm, OfOneGroupIsLayerNorm) {
  std::mt19937 rng(3);
  const OneOp group(
      "f64[2,6,2], f64[2,1], f64[2,1] = aten::native_group_norm(f64[2,6,2], _, _, "
      "N=2, C=6, HxW=2, group=1, eps=1e-05)");
  const OneOp layer(
      "f64[2,6,2], f64[2,1,1], f64[2,1,1] = aten::native_layer_norm(f64[2,6,2], _, _, "
      "normalized_shape=[6,2], eps=1e-05)");
  const Literals x = RandomInputs(group.graph(), rng);
  const Literals a = Evaluate(group.Decomposed(), x), b = Evaluate(layer.graph(), x);
  for (int k = 0; k < 3; ++k) {
    for (size_t i = 0; i < a[k].data.size(); ++i) EXPECT_NEAR(a[k].data[i], b[k].data[i], 1e-9);
  }
}

// The gradient of sum(g · forward(x)) by central differences in input `wrt`.
reference::Literal Differences(const ir::Graph& forward, Literals inputs, int wrt,
                               const reference::Literal& g) {
  auto value = [&] {
    const Literals out = Evaluate(forward, inputs);
    double sum = 0;
    for (size_t i = 0; i < g.data.size(); ++i) sum += g.data[i] * out[0].data[i];
    return sum;
  };
  reference::Literal gradient{inputs[wrt].type, {}};
  constexpr double h = 1e-5;
  for (double& x : inputs[wrt].data) {
    const double at = x;
    x = at + h;
    const double above = value();
    x = at - h;
    const double below = value();
    x = at;
    gradient.data.push_back((above - below) / (2 * h));
  }
  return gradient;
}

// `operands` puts the backward op's together, from the gradient g of the first result, the forward
// op's inputs and its results. Result k of the backward op is the gradient of input wrt[k].
void CheckGradient(const char* forward_line, const char* backward_line,
                   const std::function<Literals(const reference::Literal& g, const Literals& in,
                                                const Literals& out)>& operands,
                   const std::vector<int>& wrt) {
  std::mt19937 rng(11);
  const OneOp forward(forward_line), backward(backward_line);
  const ir::Graph graph = forward.Decomposed();
  const Literals in = RandomInputs(graph, rng);
  const Literals out = Evaluate(graph, in);
  ASSERT_FALSE(out.empty());
  const reference::Literal g = RandomLiteral(out[0].type, rng);
  const Literals gradients = Evaluate(backward.Decomposed(), operands(g, in, out));
  ASSERT_EQ(gradients.size(), wrt.size());
  for (size_t k = 0; k < wrt.size(); ++k) {
    ExpectNear(Differences(graph, in, wrt[k], g), gradients[k], 1e-6, backward_line);
  }
}

TEST(Gradients, LayerNorm) {
  CheckGradient(
      "f64[3,4], f64[3,1], f64[3,1] = aten::native_layer_norm(f64[3,4], f64[4], f64[4], "
      "normalized_shape=[4], eps=1e-05)",
      "f64[3,4], f64[4], f64[4] = aten::native_layer_norm_backward(f64[3,4], f64[3,4], f64[3,1], "
      "f64[3,1], f64[4], f64[4], normalized_shape=[4], output_mask=[true,true,true])",
      [](const reference::Literal& g, const Literals& in, const Literals& out) {
        return Literals{g, in[0], out[1], out[2], in[1], in[2]};
      },
      {0, 1, 2});
}

TEST(Gradients, GroupNorm) {
  CheckGradient(
      "f64[2,4,3], f64[2,2], f64[2,2] = aten::native_group_norm(f64[2,4,3], f64[4], f64[4], N=2, "
      "C=4, HxW=3, group=2, eps=1e-05)",
      "f64[2,4,3], f64[4], f64[4] = aten::native_group_norm_backward(f64[2,4,3], f64[2,4,3], "
      "f64[2,2], f64[2,2], f64[4], N=2, C=4, HxW=3, group=2, output_mask=[true,true,true])",
      [](const reference::Literal& g, const Literals& in, const Literals& out) {
        return Literals{g, in[0], out[1], out[2], in[1]};
      },
      {0, 1, 2});
}

TEST(Gradients, BatchNorm) {
  CheckGradient(
      "f64[3,2,2], f64[2], f64[2] = aten::_native_batch_norm_legit.no_stats(f64[3,2,2], f64[2], "
      "f64[2], training=true, momentum=0.1, eps=1e-05)",
      "f64[3,2,2], f64[2], f64[2] = aten::native_batch_norm_backward(f64[3,2,2], f64[3,2,2], "
      "f64[2], _, _, f64[2], f64[2], train=true, eps=1e-05, output_mask=[true,true,true])",
      [](const reference::Literal& g, const Literals& in, const Literals& out) {
        return Literals{g, in[0], in[1], out[1], out[2]};
      },
      {0, 1, 2});
}

TEST(Gradients, Attention) {
  CheckGradient(
      "f64[1,4,3,2], f64[1,4,3] = spmd::attention(f64[1,4,3,2], f64[1,2,3,2], f64[1,2,3,2], _, "
      "is_causal=true, scale=none)",
      "f64[1,4,3,2], f64[1,2,3,2], f64[1,2,3,2] = spmd::attention_backward(f64[1,4,3,2], "
      "f64[1,4,3,2], f64[1,2,3,2], f64[1,2,3,2], f64[1,4,3,2], f64[1,4,3], _, is_causal=true, "
      "scale=none)",
      [](const reference::Literal& g, const Literals& in, const Literals& out) {
        return Literals{g, in[0], in[1], in[2], out[0], out[1]};
      },
      {0, 1, 2});
}

class LossGradients : public testing::TestWithParam<const char*> {};

TEST_P(LossGradients, OfTheMean) {
  const std::string op = GetParam();
  const char* extra = op == "smooth_l1_loss" ? ", beta=0.5"
                      : op == "huber_loss"   ? ", delta=0.5"
                                             : "";
  const std::string forward =
      "f64[] = aten::" + op + "(f64[3,2], f64[3,2], reduction=1" + extra + ")";
  const std::string backward =
      "f64[3,2] = aten::" + op + "_backward(f64[], f64[3,2], f64[3,2], reduction=1" + extra + ")";
  CheckGradient(forward.c_str(), backward.c_str(),
                [](const reference::Literal& g, const Literals& in, const Literals&) {
                  return Literals{g, in[0], in[1]};
                },
                {0});
}

INSTANTIATE_TEST_SUITE_P(All, LossGradients,
                         testing::Values("mse_loss", "smooth_l1_loss", "huber_loss",
                                         "soft_margin_loss"));

TEST(Decomposition, RowsWithoutAnyKeyAttendToNothing) {
  const OneOp op(
      "f64[1,1,2,2], f64[1,1,2] = spmd::attention(f64[1,1,2,2], f64[1,1,2,2], "
      "f64[1,1,2,2], bool[2,2], is_causal=false, scale=1.0)");
  std::mt19937 rng(5);
  Literals in = RandomInputs(op.graph(), rng);
  in[3].data = {0, 0, 1, 0};
  const Literals out = Evaluate(op.Decomposed(), in);
  EXPECT_EQ(out[0].data[0], 0);
  EXPECT_EQ(out[0].data[1], 0);
  EXPECT_NEAR(out[0].data[2], in[2].data[0], 1e-12);
  EXPECT_EQ(out[1].data[0], -INFINITY);
}

TEST(Decomposition, MaskedResultsHaveNoValue) {
  const OneOp op(
      "f32[3,4], f32[], f32[4] = aten::native_layer_norm_backward(f32[3,4], f32[3,4], "
      "f32[3,1], f32[3,1], f32[4], f32[4], normalized_shape=[4], "
      "output_mask=[true,false,true])");
  EXPECT_EQ(op.FactorText(), "a [b], a [b], a 1, a 1, [b], [b] -> a [b], (), [b]  {a=3, b=4}");
  const ir::Graph graph = op.Decomposed();
  ASSERT_EQ(graph.outputs().size(), 2u);
  EXPECT_EQ(graph.type(graph.outputs()[0].value).dims, (Dims{3, 4}));
  EXPECT_EQ(graph.type(graph.outputs()[1].value).dims, (Dims{4}));
}

// PyTorch does not compare the lengths of an optimizer's lists where it is called as a function.
TEST(Decomposition, AnOptimizersListThatIsTooShortIsRefused) {
  const OneOp op(
      "f32[3], f32[4], f32[3] = aten::_fused_sgd([f32[3], f32[4]], [f32[3]], [], _, _, "
      "weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=false, maximize=false, "
      "is_first_step=false)");
  ir::Graph out;
  std::vector<ir::ValueId> operands;
  for (const ir::ValueId v : op.node().operands) {
    operands.push_back(v == ir::kNoValue ? v : out.AddInput(op.graph().type(v)));
  }
  Builder builder(&out, 0, -1);
  const absl::Status status =
      Decomposed(op.rule(), builder, op.graph(), op.node(), operands).status();
  EXPECT_EQ(status.message(),
            absl::StrCat(op.call().ToString(), ": list 1 has 1 tensors for 2 parameters"));
}

// An operand that is absent has no type, and there is none behind the last one.
TEST(Decomposition, ReadsNoOperandThatThereIsNot) {
  const OneOp op("f32[3,4] = aten::_softmax(f32[3,4], dim=1, half_to_float=false)");
  ir::Graph out;
  out.AddInput(op.graph().type(0));
  Builder builder(&out, 0, -1);
  for (const std::vector<ir::ValueId>& operands :
       {std::vector<ir::ValueId>{ir::kNoValue}, std::vector<ir::ValueId>{}}) {
    const absl::Status status =
        Decomposed(op.rule(), builder, op.graph(), op.node(), operands).status();
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("is outside of a list of "));
  }
}

TEST(Decomposition, RunTimeLearningRatesStayRunTime) {
  const absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(R"(graph {
  scalar $0: float
  %p: f32[4]
  %g: f32[4]
  %0: f32[4], %1: f32[4] = aten::_fused_sgd([%p], [%g], [], _, _, weight_decay=0.0, momentum=0.0, lr=$0, dampening=0.0, nesterov=false, maximize=false, is_first_step=false)
  return %0 -> %p
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  ir::Graph out;
  out.AddScalar(ir::ScalarKind::kFloat);
  const std::vector<ir::ValueId> operands = {out.AddInput(graph->type(0), "p"),
                                             out.AddInput(graph->type(1), "g"), ir::kNoValue,
                                             ir::kNoValue};
  Builder builder(&out, 0, -1);
  const auto values =
      Find("aten::_fused_sgd")->decompose(builder, *graph, graph->node(0), operands);
  ASSERT_TRUE(values.ok());
  out.AddOutput({(*values)[0]});
  EXPECT_EQ(out.ToString(), R"(graph {
  scalar $0: float
  %p: f32[4]
  %g: f32[4]
  %0: f32[4] = aten::mul.Scalar(%g, other=$0)
  %1: f32[4] = aten::sub.Tensor(%p, %0, alpha=1)
  return %1
}
)");
}

// Results 0 to 4, one per list: the parameter, its gradient, both averages; no largest average.
TEST(Decomposition, AdamIsOneCallForEachParameter) {
  const absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(R"(graph {
  scalar $0: float
  %p: f32[4]
  %g: f32[4]
  %m: f32[4]
  %v: f32[4]
  %t: f32[]
  %0: f32[4], %1: f32[4], %2: f32[4], %3: f32[4] = aten::_fused_adamw([%p], [%g], [%m], [%v], [], [%t], _, _, lr=$0, beta1=0.5, beta2=0.25, weight_decay=0.125, eps=1.0, amsgrad=false, maximize=true)
  return %0 -> %p
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto decomposed = [&](DType step) {
    ir::Graph out;
    out.AddScalar(ir::ScalarKind::kFloat);
    std::vector<ir::ValueId> operands;
    for (const char* name : {"p", "g", "m", "v"}) {
      operands.push_back(out.AddInput({DType::kF32, {4}}, name));
    }
    operands.push_back(out.AddInput({step, {}}, "t"));
    operands.insert(operands.end(), {ir::kNoValue, ir::kNoValue});
    Builder builder(&out, 0, -1);
    const auto values =
        Find("aten::_fused_adamw")->decompose(builder, *graph, graph->node(0), operands);
    EXPECT_TRUE(values.ok()) << values.status();
    EXPECT_EQ(values->size(), 4u);
    EXPECT_EQ((*values)[1], operands[1]);  // the gradient as it is
    for (const ir::ValueId v : *values) out.AddOutput({v});
    return out;
  };
  const ir::Graph whole = decomposed(DType::kF32);
  EXPECT_EQ(whole.ToString(), R"(graph {
  scalar $0: float
  %p: f32[4]
  %g: f32[4]
  %m: f32[4]
  %v: f32[4]
  %t: f32[]
  %0: f32[4], %1: f32[4], %2: f32[4] = spmd::adam(%p, %g, %m, %v, %t, lr=$0, beta1=0.5, beta2=0.25, weight_decay=0.125, eps=1.0, decoupled=true, maximize=true)
  return %0, %g, %1, %2
}
)");
  // A step counted in double precision is not the kernel's: many ops, the same numbers.
  const ir::Graph parts = decomposed(DType::kF64);
  EXPECT_EQ(parts.ToString().find("spmd::adam"), std::string::npos);
  const auto numbers = [](const ir::Graph& g) {
    const auto f32 = [](std::vector<double> data) {
      return reference::Literal{{DType::kF32, {4}}, std::move(data)};
    };
    const Literals inputs = {f32({1, -2, 3, 0}),
                             f32({0.5, 1, -1, 2}),
                             f32({0, 1, -1, 4}),
                             f32({1, 2, 0, 3}),
                             {g.type(g.inputs()[4]), {3}}};
    const auto results = reference::Interpret(g, inputs, {0.01});
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *results : Literals(4);
  };
  const Literals a = numbers(whole), b = numbers(parts);
  for (size_t k = 0; k < 4; ++k) ExpectNear(a[k], b[k], 1e-6, absl::StrCat("result ", k));
}

}  // namespace
}  // namespace spmd::rules
