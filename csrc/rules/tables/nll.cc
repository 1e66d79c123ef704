// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/nll.h"

#include <numeric>
#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

Attributes ClassAttributes(const ir::Node& node) {
  return {{"ignore_index", *node.attributes.Find("ignore_index")}, {"first_class", int64_t{0}}};
}

ValueId Scalar(Builder& b, double value, DType dtype) {
  return b.Call("spmd::full", {},
                {{"size", std::vector<int64_t>{}}, {"value", value}, {"dtype", dtype}});
}

// The number of targets that count. It depends on the targets only: every device knows its part
// before the forward pass, so the backward pass need not wait for the forward pass to end.
ValueId ExactCountOf(Builder& b, const ir::Node& node, ValueId target, DType exact) {
  const ValueId counts =
      b.Call("aten::ne.Scalar", {target}, {{"other", *node.attributes.Find("ignore_index")}});
  std::vector<int64_t> dims(b.rank(target));
  std::iota(dims.begin(), dims.end(), 0);
  return b.Call("aten::sum.dim_IntList", {counts},
                {{"dim", dims}, {"keepdim", false}, {"dtype", exact}});
}

// nll_sum adds half types up in the type to which autocast casts `logp` in front of it.
ValueId BeforeCast(Builder& b, ValueId logp) {
  const ir::NodeId producer = b.graph().value(logp).producer;
  if (producer == ir::kNoNode || !FactsOf(b.graph().node(producer).op).converts) return logp;
  const ValueId from = b.graph().node(producer).operands[0];
  const DType own = b.type(from).dtype, wide = ComputedIn(own);
  return wide != own && wide == b.type(logp).dtype ? from : logp;
}

// The loss of rows logp [n, c]; without a reduction, the result has the dims `row_dims`.
struct Loss {
  ValueId output;
  ValueId total_weight;
};
// `row_dims` is passed by value, since the graph's types move as it grows.
Loss LossOfRows(Builder& b, const ir::Node& node, ValueId logp, ValueId target, ValueId weight,
                Dims row_dims) {
  Attributes attrs = ClassAttributes(node);
  attrs.Set("num_classes", b.type(logp).dims.back());
  const int64_t reduction = node.attributes.GetInt("reduction");
  if (reduction == LossReduction::kNone) {
    const ValueId rows = b.Call("spmd::nll_rows", {logp, target, weight}, attrs);
    // PyTorch leaves the total at zero, except for a single row without a batch dimension.
    const ValueId total = row_dims.empty()
                              ? b.CallAll("spmd::nll_sum", {logp, target, weight}, attrs)[1]
                              : Scalar(b, 0, b.type(logp).dtype);
    return {b.type(rows).dims == row_dims ? rows : b.View(rows, ToVector(row_dims)), total};
  }
  const std::vector<ValueId> sums =
      b.CallAll("spmd::nll_sum", {BeforeCast(b, logp), target, weight}, attrs);
  const ValueId total =
      weight == ir::kNoValue ? ExactCountOf(b, node, target, b.type(sums[1]).dtype) : sums[1];
  return {reduction == LossReduction::kMean ? b.Div(sums[0], total) : sums[0], total};
}

// The divisor of the forward pass. It is computed again where the one that was returned has a half
// type, which may be infinite: float16 ends at 65,504 rows.
ValueId TotalWeight(Builder& b, const ir::Node& node, ValueId logp, ValueId target, ValueId weight,
                    ValueId returned) {
  const DType own = b.type(returned).dtype, wide = ComputedIn(own);
  if (wide == own) return returned;
  if (weight == ir::kNoValue) return ExactCountOf(b, node, target, wide);
  Attributes attrs = ClassAttributes(node);
  attrs.Set("num_classes", b.type(logp).dims.back());
  return b.CallAll("spmd::nll_sum", {logp, target, weight}, attrs)[1];
}

// The gradient [n, c] of the rows.
ValueId GradientOfRows(Builder& b, const ir::Node& node, ValueId grad, ValueId logp, ValueId target,
                       ValueId weight, ValueId total_weight) {
  const bool mean = node.attributes.GetInt("reduction") == LossReduction::kMean;
  const ValueId scale =
      mean ? b.Call("aten::reciprocal", {TotalWeight(b, node, logp, target, weight, total_weight)})
           : Scalar(b, 1, b.type(grad).dtype);
  Attributes attrs = {{"num_classes", b.type(logp).dims.back()}};
  for (const auto& [name, value] : ClassAttributes(node)) attrs.Set(name, value);
  return b.Call("spmd::nll_dinput", {grad, target, weight, scale}, attrs);
}

// True for an image [n, c, 1, d1 d2 …]. nll_loss of [n, c, d1, d2, …] is recorded so, with one
// merged dimension, which later passes split again, beside one of size 1.
bool OneLine(const Dims& image) { return image[2] == 1; }

// Transposes [n, c, …] to [n, …, c], and back.
ValueId ClassesLast(Builder& b, ValueId image) {
  std::vector<int64_t> order = {0};
  for (int d = 2; d < b.rank(image); ++d) order.push_back(d);
  order.push_back(1);
  return b.Call("aten::permute", {image}, {{"dims", order}});
}
ValueId ClassesSecond(Builder& b, ValueId rows) {
  const int rank = b.rank(rows);
  std::vector<int64_t> order = {0, rank - 1};
  for (int d = 1; d + 1 < rank; ++d) order.push_back(d);
  return b.Call("aten::permute", {rows}, {{"dims", order}});
}

}  // namespace

absl::StatusOr<std::vector<ValueId>> NllForward(Builder& b, const ir::Graph& from,
                                                const ir::Node& node, Operands operands) {
  ValueId logp = operands[0], target = operands[1];
  Dims row_dims = b.type(target).dims;
  if (b.rank(logp) == 1) {
    logp = b.View(logp, {1, b.type(logp).dims[0]});
    if (b.rank(target) == 0) target = b.View(target, {1});
    row_dims.clear();
  }
  const Loss loss = LossOfRows(b, node, logp, target, operands[2], row_dims);
  return AsResultsOf(b, from, node, {loss.output, loss.total_weight});
}

absl::StatusOr<std::vector<ValueId>> NllBackward(Builder& b, const ir::Graph& from,
                                                 const ir::Node& node, Operands operands) {
  const Dims dims = b.type(operands[1]).dims;
  ValueId target = operands[2];
  if (b.rank(target) == 0) target = b.View(target, {1});
  const ValueId logp = dims.size() == 1 ? b.View(operands[1], {1, dims[0]}) : operands[1];
  const ValueId rows = GradientOfRows(b, node, operands[0], logp, target, operands[3], operands[4]);
  return std::vector<ValueId>{dims.size() == 1 ? b.View(rows, ToVector(dims)) : rows};
}

absl::StatusOr<std::vector<ValueId>> Nll2dForward(Builder& b, const ir::Graph& from,
                                                  const ir::Node& node, Operands operands) {
  const Dims dims = b.type(operands[0]).dims, row_dims = b.type(operands[1]).dims;
  const ValueId image =
      OneLine(dims) ? b.View(operands[0], {dims[0], dims[1], dims[3]}) : operands[0];
  const ValueId target = OneLine(dims) ? b.View(operands[1], {dims[0], dims[3]}) : operands[1];
  const Loss loss = LossOfRows(b, node, ClassesLast(b, image), target, operands[2], row_dims);
  return AsResultsOf(b, from, node, {loss.output, loss.total_weight});
}

absl::StatusOr<std::vector<ValueId>> Nll2dBackward(Builder& b, const ir::Graph& from,
                                                   const ir::Node& node, Operands operands) {
  const Dims dims = b.type(operands[1]).dims;
  const auto rows_of = [&](ValueId v) {
    return OneLine(dims) && b.rank(v) > 0 ? b.View(v, {dims[0], dims[3]}) : v;
  };
  const ValueId logp = ClassesLast(
      b, OneLine(dims) ? b.View(operands[1], {dims[0], dims[1], dims[3]}) : operands[1]);
  const ValueId rows = GradientOfRows(b, node, rows_of(operands[0]), logp, rows_of(operands[2]),
                                      operands[3], operands[4]);
  const ValueId image = ClassesSecond(b, rows);
  return std::vector<ValueId>{OneLine(dims) ? b.View(image, ToVector(dims)) : image};
}

absl::StatusOr<std::vector<TensorType>> NllSumTypes(const OpCall& call) {
  const TensorType scalar{ComputedIn(call.operand(0).dtype), {}};
  return std::vector<TensorType>{scalar, scalar};
}

absl::StatusOr<std::vector<TensorType>> NllRowsTypes(const OpCall& call) {
  return std::vector<TensorType>{{call.operand(0).dtype, call.operand(1).dims}};
}

namespace {

int ClassDim(const OpFactors& factors, int operand) {
  return static_cast<int>(factors.operands[operand].size()) - 1;
}

// Adds a factor per dimension of the targets, over operands of the same rank and the result, whose
// last dimension is the classes. Returns the factor of the classes.
int OverRows(CallFactors& f, const OpCall& call, std::initializer_list<int> operands) {
  const Dims& dims = call.results[0].dims;
  const int rows = static_cast<int>(dims.size()) - 1;
  for (int d = 0; d < rows; ++d) {
    const int factor = f.Add(dims[d]);
    for (int k : operands) {
      if (call.operand(k).rank() >= rows) f.OverOperand(k, d, factor);
    }
    f.OverResult(d, factor);
  }
  const int classes = f.Add(dims.back());
  f.OverResult(rows, classes);
  return classes;
}

}  // namespace

Attributes LocalNll(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  const int c = ClassDim(factors, 0);
  if (IsCut(factors.operands[0][c], cut)) local.Set("first_class", Expr::Start(Operand(0), c));
  return local;
}

absl::StatusOr<OpFactors> NllDInputFactors(const OpCall& call) {
  CallFactors f(call);
  const int classes = OverRows(f, call, {0, 1});
  if (call.has(2)) f.OverOperand(2, 0, classes);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> NllDInputTypes(const OpCall& call) {
  TensorType type{call.operand(0).dtype, call.operand(1).dims};
  type.dims.push_back(call.attrs().GetInt("num_classes"));
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalNllDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  const int c = call.results[0].rank() - 1;
  if (IsCut(factors.results[0][c], cut)) {
    local.Set("num_classes", Expr::Size(Result(0), c));
    local.Set("first_class", Expr::Start(Result(0), c));
  }
  return local;
}

absl::StatusOr<OpFactors> CrossEntropyDInputFactors(const OpCall& call) {
  CallFactors f(call);
  const int classes = OverRows(f, call, {0, 1, 2});
  f.OverOperand(1, call.operand(1).rank() - 1, classes);
  if (call.has(3)) f.OverOperand(3, 0, f.AddWhole(call.results[0].dims.back()));
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> CrossEntropyDInputTypes(const OpCall& call) {
  return std::vector<TensorType>{call.operand(1)};
}

Attributes LocalCrossEntropyDInput(const OpCall& call, const OpFactors& factors,
                                   const CutFactors& cut) {
  Attributes local = call.attrs();
  const int c = call.results[0].rank() - 1;
  if (IsCut(factors.results[0][c], cut)) local.Set("first_class", Expr::Start(Result(0), c));
  return local;
}

std::optional<ValueId> AsCrossEntropyDInput(Builder& b, Operands operands,
                                            const Attributes& attributes) {
  const ValueId grad = operands[0], logp = operands[1];
  // Under autocast the loss of a log softmax in half precision is computed in float32.
  ir::NodeId producer = b.graph().value(grad).producer;
  while (producer != ir::kNoNode && FactsOf(b.graph().node(producer).op).converts) {
    producer = b.graph().value(b.graph().node(producer).operands[0]).producer;
  }
  if (producer == ir::kNoNode) return std::nullopt;
  const ir::Node nll = b.graph().node(producer);
  const TensorType type = b.type(logp);
  const int64_t dim = attributes.GetInt("dim");
  const bool last = dim == type.rank() - 1 || dim == -1;
  const absl::string_view joined = FactsOf(nll.op).through_log_softmax;
  if (joined.empty() || type.rank() < 2 || !last || b.type(grad) != type) {
    return std::nullopt;
  }
  return b.Call(joined, {nll.operands[0], logp, nll.operands[1], nll.operands[2], nll.operands[3]},
                ClassAttributes(nll));
}

}  // namespace spmd::rules
