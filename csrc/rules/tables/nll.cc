// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/nll.h"

#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

Attributes ClassAttributes(const ir::Node& node) {
  return {{"ignore_index", node.attributes.GetInt("ignore_index")}, {"first_class", int64_t{0}}};
}

ValueId Scalar(Builder& b, double value, DType dtype) {
  return b.Call("spmd::full", {},
                {{"size", std::vector<int64_t>{}}, {"value", value}, {"dtype", dtype}});
}

std::vector<int64_t> Ints(const Dims& dims) { return {dims.begin(), dims.end()}; }

// Loss of rows logp [n, c]; a result of reduction none gets `row_dims`.
struct Loss {
  ValueId output;
  ValueId total_weight;
};
// By value: what the graph's types refer to moves as it grows.
Loss LossOfRows(Builder& b, const ir::Node& node, ValueId logp, ValueId target, ValueId weight,
                Dims row_dims) {
  Attributes attrs = ClassAttributes(node);
  attrs.Set("num_classes", b.type(logp).dims.back());
  const int64_t reduction = node.attributes.GetInt("reduction");
  if (reduction == kNone) {
    const ValueId rows = b.Call("spmd::nll_rows", {logp, target, weight}, attrs);
    // PyTorch leaves the total at zero, but for a single row without a batch dimension.
    const ValueId total = row_dims.empty()
                              ? b.CallAll("spmd::nll_sum", {logp, target, weight}, attrs)[1]
                              : Scalar(b, 0, b.type(logp).dtype);
    return {b.type(rows).dims == row_dims ? rows : b.View(rows, Ints(row_dims)), total};
  }
  const std::vector<ValueId> sums = b.CallAll("spmd::nll_sum", {logp, target, weight}, attrs);
  return {reduction == kMean ? b.Div(sums[0], sums[1]) : sums[0], sums[1]};
}

// The gradient [n, c] of the rows.
ValueId GradientOfRows(Builder& b, const ir::Node& node, ValueId grad, ValueId target,
                       ValueId weight, ValueId total_weight, int64_t num_classes) {
  const bool mean = node.attributes.GetInt("reduction") == kMean;
  const ValueId scale =
      mean ? b.Call("aten::reciprocal", {total_weight}) : Scalar(b, 1, b.type(grad).dtype);
  Attributes attrs = {{"num_classes", num_classes}};
  for (const auto& [name, value] : ClassAttributes(node)) attrs.Set(name, value);
  return b.Call("spmd::nll_dinput", {grad, target, weight, scale}, attrs);
}

ValueId Flat(Builder& b, ValueId v) { return b.View(v, {b.type(v).NumElements()}); }

}  // namespace

absl::StatusOr<std::vector<ValueId>> NllForward(Builder& b, const ir::Graph& from,
                                                const ir::Node& node,
                                                absl::Span<const ValueId> operands) {
  ValueId logp = operands[0], target = operands[1];
  Dims row_dims = b.type(target).dims;
  if (b.rank(logp) == 1) {
    logp = b.View(logp, {1, b.type(logp).dims[0]});
    if (b.rank(target) == 0) target = b.View(target, {1});
    row_dims.clear();
  }
  const Loss loss = LossOfRows(b, node, logp, target, operands[2], row_dims);
  return std::vector<ValueId>{loss.output, loss.total_weight};
}

absl::StatusOr<std::vector<ValueId>> NllBackward(Builder& b, const ir::Graph& from,
                                                 const ir::Node& node,
                                                 absl::Span<const ValueId> operands) {
  const Dims dims = b.type(operands[1]).dims;
  ValueId target = operands[2];
  if (b.rank(target) == 0) target = b.View(target, {1});
  const ValueId rows =
      GradientOfRows(b, node, operands[0], target, operands[3], operands[4], dims.back());
  return std::vector<ValueId>{dims.size() == 1 ? b.View(rows, Ints(dims)) : rows};
}

absl::StatusOr<std::vector<ValueId>> Nll2dForward(Builder& b, const ir::Graph& from,
                                                  const ir::Node& node,
                                                  absl::Span<const ValueId> operands) {
  const Dims dims = b.type(operands[0]).dims;
  const ValueId last =
      b.Call("aten::permute", {operands[0]}, {{"dims", std::vector<int64_t>{0, 2, 3, 1}}});
  const ValueId logp = b.View(last, {dims[0] * dims[2] * dims[3], dims[1]});
  const Loss loss =
      LossOfRows(b, node, logp, Flat(b, operands[1]), operands[2], b.type(operands[1]).dims);
  return std::vector<ValueId>{loss.output, loss.total_weight};
}

absl::StatusOr<std::vector<ValueId>> Nll2dBackward(Builder& b, const ir::Graph& from,
                                                   const ir::Node& node,
                                                   absl::Span<const ValueId> operands) {
  const Dims dims = b.type(operands[1]).dims;
  const ValueId grad = b.rank(operands[0]) == 0 ? operands[0] : Flat(b, operands[0]);
  const ValueId rows =
      GradientOfRows(b, node, grad, Flat(b, operands[2]), operands[3], operands[4], dims[1]);
  const ValueId last = b.View(rows, {dims[0], dims[2], dims[3], dims[1]});
  return std::vector<ValueId>{
      b.Call("aten::permute", {last}, {{"dims", std::vector<int64_t>{0, 3, 1, 2}}})};
}

absl::StatusOr<std::vector<TensorType>> NllSumTypes(const OpCall& call) {
  const TensorType scalar{call.operand(0).dtype, {}};
  return std::vector<TensorType>{scalar, scalar};
}

absl::StatusOr<std::vector<TensorType>> NllRowsTypes(const OpCall& call) {
  return std::vector<TensorType>{{call.operand(0).dtype, call.operand(1).dims}};
}

Attributes LocalNll(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (IsCut(factors.operands[0][1], cut)) local.Set("first_class", Expr::Start(Operand(0), 1));
  return local;
}

absl::StatusOr<OpFactors> NllDInputFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const int rows = f.Add(dims[0]), classes = f.Add(dims[1]);
  if (call.operand(0).rank() == 1) f.OverOperand(0, 0, rows);
  f.OverOperand(1, 0, rows);
  if (call.has(2)) f.OverOperand(2, 0, classes);
  f.OverResult(0, rows);
  f.OverResult(1, classes);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> NllDInputTypes(const OpCall& call) {
  return std::vector<TensorType>{
      {call.operand(0).dtype, {call.operand(1).dims[0], call.attrs().GetInt("num_classes")}}};
}

Attributes LocalNllDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (IsCut(factors.results[0][1], cut)) {
    local.Set("num_classes", Expr::Size(Result(0), 1));
    local.Set("first_class", Expr::Start(Result(0), 1));
  }
  return local;
}

absl::StatusOr<OpFactors> CrossEntropyDInputFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const int rows = f.Add(dims[0]), classes = f.Add(dims[1]);
  if (call.operand(0).rank() == 1) f.OverOperand(0, 0, rows);
  f.OverOperand(1, 0, rows);
  f.OverOperand(1, 1, classes);
  f.OverOperand(2, 0, rows);
  if (call.has(3)) f.OverOperand(3, 0, f.AddWhole(dims[1]));
  f.OverResult(0, rows);
  f.OverResult(1, classes);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> CrossEntropyDInputTypes(const OpCall& call) {
  return std::vector<TensorType>{call.operand(1)};
}

Attributes LocalCrossEntropyDInput(const OpCall& call, const OpFactors& factors,
                                   const CutFactors& cut) {
  Attributes local = call.attrs();
  if (IsCut(factors.results[0][1], cut)) local.Set("first_class", Expr::Start(Result(0), 1));
  return local;
}

}  // namespace spmd::rules
