// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/decompositions.h"

#include <utility>

namespace spmd::rules {

ir::ValueId Upcast(Builder& b, ir::ValueId v) {
  const DType t = b.type(v).dtype;
  return IsFloating(t) && ByteSize(t) < 4 ? b.Cast(v, DType::kF32) : v;
}

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
  return b.DivScalar(b.Sum(v, std::move(dims), keepdim), static_cast<double>(count));
}

}  // namespace spmd::rules
