// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/decompositions.h"

#include <utility>

namespace spmd::rules {

DType ComputedIn(DType dtype) {
  return IsFloating(dtype) && ByteSize(dtype) < 4 ? DType::kF32 : dtype;
}

ir::ValueId Upcast(Builder& b, ir::ValueId v) { return b.Cast(v, ComputedIn(b.type(v).dtype)); }

Values AsResultsOf(Builder& b, const ir::Graph& from, const ir::Node& node, Values values) {
  for (size_t k = 0; k < values.size(); ++k) {
    if (values[k] == ir::kNoValue) continue;
    values[k] = b.Cast(values[k], from.type(node.first_result + static_cast<int>(k)).dtype);
  }
  return values;
}

Attr NumberOr(const ir::Node& node, absl::string_view name, double fallback) {
  return node.attributes.IsNone(name) ? Attr(fallback) : *node.attributes.Find(name);
}

std::optional<double> Known(const Attr& number) {
  if (const auto* d = std::get_if<double>(&number)) return *d;
  if (const auto* i = std::get_if<int64_t>(&number)) return static_cast<double>(*i);
  if (const auto* b = std::get_if<bool>(&number)) return *b ? 1 : 0;
  return std::nullopt;
}

ir::ValueId OptionalOperand(Operands operands, size_t i) {
  return i < operands.size() ? operands[i] : ir::kNoValue;
}

ir::ValueId EmptyResult(Builder& b, const TensorType& type) {
  return b.Call("spmd::full", {},
                {{"size", std::vector<int64_t>(type.dims.begin(), type.dims.end())},
                 {"value", 0.0},
                 {"dtype", type.dtype}});
}

ir::ValueId MeanOf(Builder& b, ir::ValueId v, std::vector<int64_t> dims, int64_t count,
                   bool keepdim) {
  const DType own = b.type(v).dtype, wide = ComputedIn(own);
  const ir::ValueId sum = b.Call("aten::sum.dim_IntList", {v},
                                 {{"dim", std::move(dims)},
                                  {"keepdim", keepdim},
                                  {"dtype", wide == own ? Attr(NoneAttr{}) : Attr(wide)}});
  return b.DivScalar(sum, static_cast<double>(count));
}

}  // namespace spmd::rules
