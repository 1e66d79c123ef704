// SPDX-License-Identifier: Apache-2.0
#include "csrc/reference/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace spmd::reference {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointwise;
using Data = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Runs "op(%a, %b, attributes)" on literals of the given types; `result` is "f32[2], i64[2]".
absl::StatusOr<std::vector<Literal>> ResultsOf(
    const std::string& result, const std::string& call,
    const std::vector<std::pair<std::string, Data>>& inputs) {
  std::string text = "graph {\n scalar $0: float\n scalar $1: int\n";
  std::vector<Literal> literals;
  for (size_t k = 0; k < inputs.size(); ++k) {
    absl::StrAppend(&text, " %", std::string(1, static_cast<char>('a' + k)), ": ", inputs[k].first,
                    "\n");
    literals.push_back({*TensorType::Parse(inputs[k].first), inputs[k].second});
  }
  absl::StrAppend(&text, " ", result, " = ", call, "\n return %0\n}");
  const auto graph = ir::Graph::Parse(text);
  if (!graph.ok()) return graph.status();
  return Interpret(*graph, literals, {0.5, 2});
}

Data First(const std::string& type, const std::string& call,
           const std::vector<std::pair<std::string, Data>>& inputs) {
  const auto results = ResultsOf("%0: " + type, call, inputs);
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? (*results)[0].data : Data();
}

std::string Error(const std::string& type, const std::string& call,
                  const std::vector<std::pair<std::string, Data>>& inputs) {
  return std::string(ResultsOf("%0: " + type, call, inputs).status().message());
}

auto Near(const Data& expected) { return Pointwise(testing::DoubleNear(1e-6), expected); }

TEST(Interpreter, Elementwise) {
  EXPECT_THAT(First("f32[2,2]", "aten::add.Tensor(%a, %b, alpha=2)",
                    {{"f32[2,2]", {1, 2, 3, 4}}, {"f32[2]", {10, 20}}}),
              ElementsAre(21, 42, 23, 44));
  EXPECT_THAT(First("f32[2,3]", "aten::mul.Tensor(%a, %b)",
                    {{"f32[2,1]", {1, 2}}, {"f32[1,3]", {1, 10, 100}}}),
              ElementsAre(1, 10, 100, 2, 20, 200));
  EXPECT_THAT(
      First("f32[1,2,2]", "spmd::channel_affine(%a, %b, %c)",
            {{"f32[1,2,1]", {1, 2}}, {"f32[1,2,2]", {3, 4, 5, 6}}, {"f32[1,2,1]", {10, 100}}}),
      ElementsAre(31, 41, 502, 602));
  EXPECT_THAT(First("bool[3]", "aten::lt.Scalar(%a, other=2)", {{"f32[3]", {1, 2, 3}}}),
              ElementsAre(1, 0, 0));
  EXPECT_THAT(First("f32[2]", "aten::where.self(%a, %b, %c)",
                    {{"bool[2]", {1, 0}}, {"f32[2]", {1, 2}}, {"f32[]", {9}}}),
              ElementsAre(1, 9));
  EXPECT_THAT(First("f32[4]", "aten::clamp(%a, min=-1, max=none)", {{"f32[4]", {-3, -1, 0, 7}}}),
              ElementsAre(-1, -1, 0, 7));
  EXPECT_THAT(First("f32[3]", "aten::gelu(%a, approximate=\"none\")", {{"f32[3]", {-1, 0, 1}}}),
              Near({-0.15865525, 0, 0.84134475}));
  EXPECT_THAT(First("f32[3]", "aten::gelu(%a, approximate=\"tanh\")", {{"f32[3]", {-1, 0, 1}}}),
              Near({-0.15880801, 0, 0.84119199}));
  EXPECT_THAT(First("i64[2]", "aten::div.Tensor_mode(%a, %b, rounding_mode=\"floor\")",
                    {{"i64[2]", {-7, 7}}, {"i64[]", {2}}}),
              ElementsAre(-4, 3));
  EXPECT_THAT(First("i64[2]", "aten::remainder.Scalar(%a, other=3)", {{"i64[2]", {-7, 7}}}),
              ElementsAre(2, 1));
}

TEST(Interpreter, RuntimeScalarsKeepTheirKind) {
  EXPECT_THAT(First("f32[1]", "aten::mul.Scalar(%a, other=$0)", {{"f32[1]", {3}}}),
              ElementsAre(1.5));
  EXPECT_THAT(First("f32[2]", "spmd::slice_start(%a, dim=0, start=$1, length=2)",
                    {{"f32[5]", {0, 1, 2, 3, 4}}}),
              ElementsAre(2, 3));
}

TEST(Interpreter, RoundsToTheResultsType) {
  EXPECT_EQ(First("f32[1]", "spmd::cast(%a, dtype=f32)", {{"f64[1]", {0.1}}})[0],
            static_cast<double>(0.1f));
  EXPECT_THAT(First("i32[3]", "spmd::cast(%a, dtype=i32)", {{"f32[3]", {-1.75, 2.5, 1e20}}}),
              ElementsAre(-1, 2, 2147483647));
  EXPECT_THAT(First("bool[3]", "spmd::cast(%a, dtype=bool)", {{"f32[3]", {-1, 0, 0.25}}}),
              ElementsAre(1, 0, 1));
}

TEST(RoundTo, NarrowFloats) {
  // From IEEE 754 and the OCP 8-bit formats: halfway cases go to even, tiny ones are subnormal.
  EXPECT_EQ(RoundTo(DType::kBF16, 1.00390625), 1.0);
  EXPECT_EQ(RoundTo(DType::kBF16, 1.01171875), 1.015625);
  EXPECT_EQ(RoundTo(DType::kF16, 65519), 65504);
  EXPECT_EQ(RoundTo(DType::kF16, 65520), kInf);
  EXPECT_EQ(RoundTo(DType::kF16, std::ldexp(1.0, -25)), 0);
  EXPECT_EQ(RoundTo(DType::kF16, std::ldexp(1.5, -25)), std::ldexp(1.0, -24));
  EXPECT_EQ(RoundTo(DType::kF8E4M3FN, 448), 448);
  EXPECT_TRUE(std::isnan(RoundTo(DType::kF8E4M3FN, 480)));
  EXPECT_EQ(RoundTo(DType::kF8E5M2, 3.4), 3.5);
  EXPECT_EQ(RoundTo(DType::kBF16, -kInf), -kInf);
}

TEST(Interpreter, Products) {
  const std::pair<std::string, Data> a = {"f32[2,3]", {1, 2, 3, 4, 5, 6}};
  const std::pair<std::string, Data> b = {"f32[3,2]", {1, 0, 0, 1, 1, 1}};
  EXPECT_THAT(First("f32[2,2]", "aten::mm(%a, %b)", {a, b}), ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(First("f32[2,2]", "aten::addmm(%c, %a, %b, beta=2, alpha=-1)",
                    {a, b, {"f32[2]", {100, 200}}}),
              ElementsAre(196, 395, 190, 389));
  EXPECT_THAT(
      First("f32[1,2,2]", "aten::linear(%a, %b, %c)",
            {{"f32[1,2,3]", a.second}, {"f32[2,3]", {1, 0, 0, 0, 1, 0}}, {"f32[2]", {10, 20}}}),
      ElementsAre(11, 22, 14, 25));
  EXPECT_THAT(First("f32[2,3]", "spmd::linear_dinput(%a, %b)", {{"f32[2,2]", {1, 0, 0, 1}}, a}),
              ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(First("f32[1,3]", "spmd::linear_dweight(%a, %b)", {{"f32[2,1]", {1, 10}}, a}),
              ElementsAre(41, 52, 63));
  EXPECT_THAT(First("f32[2,1,2]", "aten::matmul(%a, %b)", {{"f32[2,1,3]", a.second}, b}),
              ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(First("f32[2]", "aten::matmul(%a, %b)", {{"f32[3]", {1, 2, 3}}, b}),
              ElementsAre(4, 5));
}

TEST(Interpreter, Reductions) {
  const std::pair<std::string, Data> a = {"f32[2,3]", {1, 5, 3, 4, -2, 6}};
  EXPECT_THAT(First("f32[3]", "aten::sum.dim_IntList(%a, dim=[0], keepdim=false)", {a}),
              ElementsAre(5, 3, 9));
  EXPECT_THAT(First("f32[2,1]", "aten::sum.dim_IntList(%a, dim=[-1], keepdim=true)", {a}),
              ElementsAre(9, 8));
  EXPECT_THAT(First("f32[]", "aten::sum(%a)", {a}), ElementsAre(17));
  EXPECT_THAT(First("f32[]", "aten::amax(%a, dim=[], keepdim=false)", {a}), ElementsAre(6));
  EXPECT_THAT(First("i64[2]", "aten::argmax(%a, dim=1, keepdim=false)", {a}), ElementsAre(1, 2));
  EXPECT_THAT(First("f32[2]", "aten::mean.dim(%a, dim=[1], keepdim=false)", {a}),
              Near({3, 8.0 / 3}));
  EXPECT_THAT(
      First("f32[2]", "aten::var.correction(%a, dim=[1], correction=1, keepdim=false)", {a}),
      Near({4, 52.0 / 3}));
  EXPECT_THAT(First("f32[2,3]", "aten::cumsum(%a, dim=1)", {a}), ElementsAre(1, 6, 9, 4, 2, 8));
  EXPECT_THAT(First("f32[2]", "aten::_softmax(%a, dim=0, half_to_float=false)",
                    {{"f32[2]", {0, std::log(3.0)}}}),
              Near({0.25, 0.75}));
  const auto both =
      ResultsOf("%0: f32[2], %1: i64[2]", "aten::max.dim(%a, dim=1, keepdim=false)", {a});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT((*both)[0].data, ElementsAre(5, 6));
}

TEST(Interpreter, EmptyReductionsGiveTheIdentity) {
  EXPECT_THAT(
      First("f32[2]", "aten::sum.dim_IntList(%a, dim=[1], keepdim=false)", {{"f32[2,0]", {}}}),
      ElementsAre(0, 0));
  EXPECT_THAT(First("f32[2]", "aten::amax(%a, dim=[1], keepdim=false)", {{"f32[2,0]", {}}}),
              ElementsAre(-kInf, -kInf));
  EXPECT_THAT(First("f32[1,1]", "aten::mm(%a, %b)", {{"f32[1,0]", {}}, {"f32[0,1]", {}}}),
              ElementsAre(0));
}

TEST(Interpreter, LayerNorm) {
  const auto results =
      ResultsOf("%0: f32[2,2], %1: f32[2,1], %2: f32[2,1]",
                "aten::native_layer_norm(%a, %b, _, normalized_shape=[2], eps=0.0)",
                {{"f32[2,2]", {1, 3, 10, 20}}, {"f32[2]", {1, 2}}});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT((*results)[0].data, Near({-1, 2, -1, 2}));
}

TEST(Interpreter, Views) {
  const std::pair<std::string, Data> a = {"f32[2,3]", {1, 2, 3, 4, 5, 6}};
  EXPECT_THAT(First("f32[3,2]", "aten::transpose.int(%a, dim0=0, dim1=1)", {a}),
              ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(First("f32[3,2]", "aten::view(%a, size=[-1,2])", {a}), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(First("f32[2,2,3]", "aten::expand(%a, size=[2,-1,3])", {a}),
              ElementsAre(1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(First("f32[2,2]", "aten::slice.Tensor(%a, dim=1, start=-2, end=none, step=1)", {a}),
              ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(First("f32[2,2]",
                    "aten::slice.Tensor(%a, dim=1, start=0, end=9223372036854775807, step=2)", {a}),
              ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(First("f32[2]", "aten::select.int(%a, dim=-1, index=-1)", {a}), ElementsAre(3, 6));
  EXPECT_THAT(First("f32[4,3]", "aten::cat([%a, %b], dim=0)", {a, a}).size(), 12u);
  EXPECT_THAT(First("f32[2,4]", "aten::cat([%a, %b], dim=-1)", {a, {"f32[2,1]", {8, 9}}}),
              ElementsAre(1, 2, 3, 8, 4, 5, 6, 9));
  EXPECT_THAT(
      First("f32[2,2]", "aten::stack([%a, %b], dim=1)", {{"f32[2]", {1, 2}}, {"f32[2]", {3, 4}}}),
      ElementsAre(1, 3, 2, 4));
  EXPECT_THAT(First("f32[2,3]", "aten::flip(%a, dims=[1])", {a}), ElementsAre(3, 2, 1, 6, 5, 4));
  EXPECT_THAT(First("f32[2,3]", "aten::roll(%a, shifts=[1], dims=[1])", {a}),
              ElementsAre(3, 1, 2, 6, 4, 5));
  EXPECT_THAT(First("f32[2,3]", "aten::roll(%a, shifts=[-4], dims=[1])", {a}),
              ElementsAre(2, 3, 1, 5, 6, 4));
  EXPECT_THAT(First("f32[2,3]", "aten::constant_pad_nd(%a, pad=[1,-1], value=9)", {a}),
              ElementsAre(9, 1, 2, 9, 4, 5));
  EXPECT_THAT(First("f32[2,3]", "aten::slice_scatter(%a, %b, dim=1, start=1, end=3, step=1)",
                    {a, {"f32[2,2]", {0, 0, 0, 0}}}),
              ElementsAre(1, 0, 0, 4, 0, 0));
  EXPECT_THAT(First("f32[3]", "aten::select_backward(%a, input_sizes=[3], dim=0, index=1)",
                    {{"f32[]", {7}}}),
              ElementsAre(0, 7, 0));
  EXPECT_THAT(First("f32[2,3]", "aten::tril(%a, diagonal=0)", {a}), ElementsAre(1, 0, 0, 4, 5, 0));
  EXPECT_THAT(First("f32[2,3]", "aten::squeeze.dims(%a, dim=[0,2])", {{"f32[1,2,3]", a.second}}),
              ElementsAre(1, 2, 3, 4, 5, 6))
      << "dimension 2 has size 3 and stays";
}

TEST(Interpreter, EmbeddingHoldsPartOfTheTable) {
  const std::pair<std::string, Data> weight = {"f32[2,2]", {1, 2, 3, 4}};
  const std::pair<std::string, Data> indices = {"i64[3]", {1, 0, 2}};
  EXPECT_THAT(First("f32[3,2]", "spmd::embedding(%a, %b, first_row=1)", {weight, indices}),
              ElementsAre(1, 2, 0, 0, 3, 4));
  EXPECT_THAT(First("f32[2,2]",
                    "spmd::embedding_dweight(%a, %b, num_weights=2, padding_idx=2, first_row=1)",
                    {{"f32[3,2]", {1, 1, 2, 2, 3, 3}}, indices}),
              ElementsAre(1, 1, 0, 0));
}

TEST(Interpreter, NegativeLogLikelihood) {
  const std::pair<std::string, Data> logp = {"f32[2,3]", {-1, -2, -3, -4, -5, -6}};
  const std::pair<std::string, Data> target = {"i64[2]", {2, 0}};
  const auto sums = ResultsOf("%0: f32[], %1: f32[]",
                              "spmd::nll_sum(%a, %b, %c, ignore_index=-100, first_class=0)",
                              {logp, target, {"f32[3]", {1, 10, 2}}});
  ASSERT_TRUE(sums.ok()) << sums.status();
  EXPECT_THAT((*sums)[0].data, ElementsAre(10));
  EXPECT_THAT(
      First("f32[2]", "spmd::nll_rows(%a, %b, _, ignore_index=0, first_class=0)", {logp, target}),
      ElementsAre(3, 0));
  EXPECT_THAT(
      First("f32[2,2]",
            "spmd::nll_dinput(%a, %b, _, %c, num_classes=2, ignore_index=-1, first_class=1)",
            {{"f32[]", {2}}, target, {"f32[]", {0.5}}}),
      ElementsAre(0, -1, 0, 0));
}

TEST(Interpreter, ConvolutionAndItsGradients) {
  const std::string attributes =
      "stride=[2], padding=[1], dilation=[1], transposed=false, output_padding=[0], groups=1)";
  EXPECT_THAT(
      First("f32[1,1,2]", "aten::convolution(%a, %b, %c, " + attributes,
            {{"f32[1,1,4]", {1, 2, 3, 4}}, {"f32[1,1,3]", {1, 10, 100}}, {"f32[1]", {1000}}}),
      ElementsAre(1210, 1432));
  EXPECT_THAT(First("f32[1,1,4]",
                    "spmd::conv_dinput(%a, %b, input_size=[4], stride=[2], padding=[1], "
                    "dilation=[1], groups=1, crop_start=[0])",
                    {{"f32[1,1,2]", {1, 2}}, {"f32[1,1,3]", {1, 10, 100}}}),
              ElementsAre(10, 102, 20, 200));
  EXPECT_THAT(First("f32[1,1,2]",
                    "spmd::conv_dinput(%a, %b, input_size=[2], stride=[2], padding=[1], "
                    "dilation=[1], groups=1, crop_start=[1])",
                    {{"f32[1,1,2]", {1, 2}}, {"f32[1,1,3]", {1, 10, 100}}}),
              ElementsAre(102, 20));
  EXPECT_THAT(First("f32[1,1,3]",
                    "spmd::conv_dweight(%a, %b, weight_size=[3], stride=[2], padding=[1], "
                    "dilation=[1], groups=1)",
                    {{"f32[1,1,2]", {1, 2}}, {"f32[1,1,4]", {1, 2, 3, 4}}}),
              ElementsAre(4, 7, 10));
}

TEST(Interpreter, AttentionOfEqualKeysIsTheMeanOfWhatIsSeen) {
  const auto results = ResultsOf(
      "%0: f32[1,1,2,1], %1: f32[1,1,2]",
      "spmd::attention(%a, %b, %c, _, is_causal=true, scale=none)",
      {{"f32[1,1,2,2]", {1, 2, 3, 4}}, {"f32[1,1,2,2]", {0, 0, 0, 0}}, {"f32[1,1,2,1]", {10, 20}}});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_THAT((*results)[0].data, Near({10, 15}));
}

TEST(Interpreter, AttentionBackwardIsTheSlope) {
  // Central differences of sum(out · grad) along each operand.
  const std::string attributes = "_, is_causal=true, scale=0.7)";
  std::vector<std::pair<std::string, Data>> qkv;
  for (int k = 0; k < 3; ++k) {
    const std::string type = k == 0 ? "f64[1,2,3,2]" : "f64[1,1,3,2]";
    qkv.push_back({type, SampleLiteral(*TensorType::Parse(type), 10 + k).data});
  }
  const Data grad = SampleLiteral(*TensorType::Parse("f64[1,2,3,2]"), 20).data;
  const auto value = [&](const std::vector<std::pair<std::string, Data>>& at) {
    const auto out = ResultsOf("%0: f64[1,2,3,2], %1: f64[1,2,3]",
                               "spmd::attention(%a, %b, %c, " + attributes, at);
    double sum = 0;
    for (size_t i = 0; i < grad.size(); ++i) sum += (*out)[0].data[i] * grad[i];
    return sum;
  };
  auto operands = qkv;
  operands.push_back({"f64[1,2,3,2]", grad});
  const char* names[] = {"%0", "%1", "%2"};
  for (int k = 0; k < 3; ++k) {
    std::string text = "graph {\n";
    for (size_t i = 0; i < operands.size(); ++i) {
      absl::StrAppend(&text, " %", std::string(1, static_cast<char>('a' + i)), ": ",
                      operands[i].first, "\n");
    }
    absl::StrAppend(&text, " %o: f64[1,2,3,2], %l: f64[1,2,3] = spmd::attention(%a, %b, %c, ",
                    attributes,
                    "\n %0: f64[1,2,3,2], %1: f64[1,1,3,2], %2: f64[1,1,3,2] = "
                    "spmd::attention_backward(%d, %a, %b, %c, %o, %l, ",
                    attributes, "\n return ", names[k], "\n}");
    const auto graph = ir::Graph::Parse(text);
    ASSERT_TRUE(graph.ok()) << graph.status();
    std::vector<Literal> literals;
    for (const auto& [type, data] : operands) literals.push_back({*TensorType::Parse(type), data});
    const auto gradient = Interpret(*graph, literals);
    ASSERT_TRUE(gradient.ok()) << gradient.status();
    for (size_t i = 0; i < qkv[k].second.size(); ++i) {
      auto up = qkv, down = qkv;
      up[k].second[i] += 1e-5;
      down[k].second[i] -= 1e-5;
      EXPECT_NEAR((*gradient)[0].data[i], (value(up) - value(down)) / 2e-5, 1e-7) << k << " " << i;
    }
  }
}

TEST(Interpreter, RandomTilesArePartsOfTheWhole) {
  const auto random = [](const char* type, const char* size, const char* offset) {
    return First(type,
                 absl::StrCat("spmd::random(size=", size, ", offset=", offset,
                              ", global_size=[4,3], seed=1, counter=2, distribution=\"normal\", "
                              "p0=0.0, p1=1.0, dtype=f32)"),
                 {});
  };
  const Data whole = random("f32[4,3]", "[4,3]", "[0,0]");
  EXPECT_THAT(random("f32[2,2]", "[2,2]", "[2,1]"),
              ElementsAre(whole[7], whole[8], whole[10], whole[11]));
  EXPECT_NE(whole[0], whole[1]);
}

TEST(Interpreter, NamesWhatItDoesNotKnow) {
  const auto results = ResultsOf("%0: f32[1]", "mylib::secret(%a)", {{"f32[1]", {1}}});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(results.status().message()), HasSubstr("'mylib::secret'"));
}

TEST(Interpreter, RefusesWhatDoesNotFit) {
  const std::pair<std::string, Data> a = {"f32[2]", {1, 2}};
  EXPECT_EQ(Error("f32[3]", "aten::neg(%a)", {a}),
            "interpreter: 'aten::neg': result 0 has dimensions [2], declared is f32[3]");
  EXPECT_EQ(Error("f32[2]", "aten::add.Tensor(%a)", {a}),
            "interpreter: 'aten::add.Tensor': operand 1 is absent");
  EXPECT_EQ(Error("f32[2]", "aten::mul.Scalar(%a)", {a}),
            "interpreter: 'aten::mul.Scalar': attribute 'other' is missing");
  EXPECT_EQ(Error("f32[2]", "aten::mul.Scalar(%a, other=\"x\")", {a}),
            "interpreter: 'aten::mul.Scalar': attribute other=\"x\", expected a number");
  EXPECT_EQ(Error("f32[2]", "aten::select.int(%a, dim=1, index=0)", {a}),
            "interpreter: 'aten::select.int': dimension 1 of a tensor of rank 1");
  EXPECT_THAT(Error("f32[2,2]", "aten::mm(%a, %a)", {a}), HasSubstr("does not fit 'mk,kn->mn'"));
  EXPECT_THAT(Error("f32[100000,100000]", "aten::mm(%a, %a)", {a}), HasSubstr("too large"));
  EXPECT_THAT(Error("f32[2]", "aten::mul.Scalar(%a, other=$1)", {{"f32[3]", {1, 2}}}),
              HasSubstr("input '%a' of f32[3] has 2 elements"));
}

// Every op on operands and attributes that make no sense: an error or a result, never a crash.
TEST(Interpreter, SurvivesNonsense) {
  const char* ops[] = {"aten::mm",
                       "aten::linear",
                       "aten::sum",
                       "aten::amax",
                       "aten::_softmax",
                       "aten::native_layer_norm",
                       "aten::view",
                       "aten::permute",
                       "aten::transpose.int",
                       "aten::expand",
                       "aten::slice.Tensor",
                       "aten::slice_backward",
                       "aten::select.int",
                       "aten::cat",
                       "aten::stack",
                       "aten::roll",
                       "aten::flip",
                       "aten::constant_pad_nd",
                       "aten::repeat",
                       "aten::squeeze",
                       "aten::gather",
                       "aten::index_select",
                       "spmd::embedding",
                       "spmd::embedding_dweight",
                       "spmd::nll_sum",
                       "spmd::nll_dinput",
                       "spmd::cross_entropy_dinput",
                       "spmd::iota",
                       "spmd::full",
                       "spmd::random",
                       "spmd::dropout",
                       "aten::convolution",
                       "spmd::conv_dinput",
                       "spmd::conv_dweight",
                       "spmd::attention",
                       "spmd::attention_backward",
                       "spmd::slice_start",
                       "spmd::slice_start_scatter",
                       "aten::unsqueeze",
                       "aten::tril"};
  const char* attributes[] = {"dim",
                              "size",
                              "dims",
                              "start",
                              "end",
                              "step",
                              "index",
                              "pad",
                              "seed",
                              "input_sizes",
                              "offset",
                              "global_size",
                              "normalized_shape",
                              "stride",
                              "padding",
                              "dilation",
                              "groups",
                              "input_size",
                              "num_weights",
                              "length",
                              "distribution",
                              "p",
                              "counter",
                              "shifts",
                              "repeats",
                              "crop_start"};
  const char* types[] = {"f32[2,3]", "f32[]", "f32[0]", "i64[3]", "f32[1,2,3,2]", "f32[2]"};
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const auto value = [&]() -> Attr {
    const int64_t numbers[] = {0, 1, -1, 2, 3, -7, int64_t{1} << 40, INT64_MAX, INT64_MIN};
    switch (below(4)) {
      case 0:
        return numbers[below(9)];
      case 1:
        return std::string("normal");
      case 2:
        return std::vector<int64_t>(below(5), numbers[below(9)]);
      default:
        return std::vector<int64_t>{1, 2};
    }
  };
  int good = 0;
  for (int i = 0; i < 60000; ++i) {
    std::vector<Literal> operands;
    for (int n = below(5); n > 0; --n) {
      operands.push_back(SampleLiteral(*TensorType::Parse(types[below(6)]), i));
    }
    std::vector<const Literal*> pointers;
    for (const Literal& operand : operands) pointers.push_back(below(6) ? &operand : nullptr);
    Attributes given;
    for (int n = below(8); n > 0; --n) given.Set(attributes[below(std::size(attributes))], value());
    const TensorType result = *TensorType::Parse(types[below(6)]);
    good += InterpretOp(ops[below(std::size(ops))], pointers, {}, given, {result}).ok();
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace spmd::reference
