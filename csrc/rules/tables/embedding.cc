// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/embedding.h"

#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

ir::ValueId DWeight(Builder& b, ir::ValueId grad, ir::ValueId indices, int64_t num_weights,
                    const Attr& padding_idx) {
  return b.Call("spmd::embedding_dweight", {grad, indices},
                {{"num_weights", num_weights},
                 {"padding_idx", padding_idx},
                 {"first_row", int64_t{0}},
                 {"num_rows", num_weights}});
}

ir::ValueId RowsOf(Builder& b, ir::ValueId weight, ir::ValueId indices) {
  return b.Call("spmd::embedding", {weight, indices},
                {{"first_row", int64_t{0}}, {"num_rows", b.type(weight).dims[0]}});
}

// Each row of the gradient divided by the number of times that its index occurs.
ir::ValueId OverFrequency(Builder& b, ir::ValueId grad, ir::ValueId indices, int64_t num_weights) {
  const Dims& dims = b.type(indices).dims;
  std::vector<int64_t> size(dims.begin(), dims.end());
  size.push_back(1);
  const DType dtype = b.type(grad).dtype;
  // Half types cannot count far, so the counts are f32.
  const ir::ValueId ones = b.Call(
      "spmd::full", {}, {{"size", std::move(size)}, {"value", 1.0}, {"dtype", ComputedIn(dtype)}});
  const ir::ValueId counts = DWeight(b, ones, indices, num_weights, /*padding_idx=*/int64_t{-1});
  return b.Cast(b.Div(Upcast(b, grad), RowsOf(b, counts, indices)), dtype);
}

}  // namespace

absl::StatusOr<std::vector<ir::ValueId>> EmbeddingByRows(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node, Operands operands) {
  return std::vector<ir::ValueId>{RowsOf(b, operands[0], operands[1])};
}

absl::StatusOr<std::vector<ir::ValueId>> EmbeddingBackwardByRows(Builder& b, const ir::Graph& from,
                                                                 const ir::Node& node,
                                                                 Operands operands) {
  const int64_t num_weights = node.attributes.GetInt("num_weights");
  ir::ValueId grad = operands[0];
  if (node.attributes.GetBoolOr("scale_grad_by_freq", false)) {
    grad = OverFrequency(b, grad, operands[1], num_weights);
  }
  return std::vector<ir::ValueId>{
      DWeight(b, grad, operands[1], num_weights, *node.attributes.Find("padding_idx"))};
}

absl::StatusOr<std::vector<TensorType>> EmbeddingTypes(const OpCall& call) {
  TensorType type{call.operand(0).dtype, call.operand(1).dims};
  type.dims.push_back(call.operand(0).dims[1]);
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalEmbedding(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (IsCut(factors.operands[0][0], cut)) local.Set("first_row", Expr::Start(Operand(0), 0));
  return local;
}

absl::StatusOr<std::vector<TensorType>> EmbeddingDWeightTypes(const OpCall& call) {
  const TensorType& grad = call.operand(0);
  return std::vector<TensorType>{
      {grad.dtype, {call.attrs().GetInt("num_weights"), grad.dims.back()}}};
}

Attributes LocalEmbeddingDWeight(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut) {
  Attributes local = call.attrs();
  if (IsCut(factors.results[0][0], cut)) {
    local.Set("num_weights", Expr::Size(Result(0), 0));
    local.Set("first_row", Expr::Start(Result(0), 0));
  }
  return local;
}

}  // namespace spmd::rules
