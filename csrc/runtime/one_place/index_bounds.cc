// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/index_bounds.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/string_view.h"

namespace spmd::runtime {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

// An op that, for common element types, fails only if operand 1 has an index outside [0, size).
// `size` is the attribute of that name (any index is in range if it is below 0); if no attribute is
// named, it is the size of operand 0's dimension `dim`.
struct IndexOp {
  absl::string_view op;
  absl::string_view size;
};
constexpr IndexOp kIndexOps[] = {
    {"aten::gather", ""},
    {"aten::index_add", ""},
    {"aten::index_copy", ""},
    {"aten::index_fill.int_Scalar", ""},
    {"aten::index_fill.int_Tensor", ""},
    {"aten::index_select", ""},
    {"aten::scatter.src", ""},
    {"aten::scatter.value", ""},
    {"aten::scatter_add", ""},
    {"aten::scatter_reduce.two", ""},
    {"spmd::embedding", "num_rows"},
    {"spmd::embedding_dweight", "num_rows"},
    {"spmd::gather_part", "size"},
    {"spmd::index_write_part", "size"},
    {"spmd::nll_rows", "num_classes"},
    {"spmd::nll_sum", "num_classes"},
    {"spmd::scatter_part", "size"},
};
// Ops whose results contain elements of their operand and no others.
constexpr absl::string_view kSameElements[] = {
    "aten::expand",  "aten::permute",   "aten::select.int", "aten::slice.Tensor",
    "aten::squeeze", "aten::unsqueeze", "aten::view"};

bool IsOneOf(absl::Span<const absl::string_view> ops, absl::string_view op) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// The input whose elements the value `id` has; kNoValue if there is none.
ValueId Root(const Program& program, ValueId id, const program::DefUse& facts) {
  while (facts.maker(id) >= 0) {
    const Instruction& made = program.instructions[facts.maker(id)];
    if (made.code != OpCode::kCall || !IsOneOf(kSameElements, made.op)) return kNoValue;
    id = made.operands[0];
  }
  return id;
}

// True if all operands but the indices have one common type. All kernels support these types; not
// all support others.
bool HasCommonType(const Program& program, const Instruction& call) {
  const DType type = program.values[call.operands[0]].type.dtype;
  constexpr DType kCommon[] = {DType::kF32,  DType::kF64, DType::kF16,
                               DType::kBF16, DType::kI32, DType::kI64};
  if (std::find(std::begin(kCommon), std::end(kCommon), type) == std::end(kCommon)) return false;
  for (size_t k = 2; k < call.operands.size(); ++k) {
    const ValueId id = call.operands[k];
    if (id != kNoValue && program.values[id].type.dtype != type) return false;
  }
  return true;
}

// The size of the indexed dimension; nullopt if a tile does not hold all of it.
std::optional<int64_t> IndexedSize(const Program& program, const Instruction& call) {
  const Attr* const dim = call.attributes.Find("dim");
  const program::Value& self = program.values[call.operands[0]];
  if (dim == nullptr || !std::holds_alternative<int64_t>(*dim) || !self.windows.empty()) {
    return std::nullopt;
  }
  const int64_t rank = static_cast<int64_t>(self.type.dims.size());
  int64_t d = std::get<int64_t>(*dim);
  if (d < 0) d += rank;
  if (d < 0 || d >= rank || !self.sharding.dims[d].axes.empty()) return std::nullopt;
  return self.type.dims[d];
}

std::optional<int64_t> SizeOf(const Program& program, const Instruction& call,
                              absl::string_view attribute) {
  if (attribute.empty()) return IndexedSize(program, call);
  const Attr* const size = call.attributes.Find(attribute);
  if (size == nullptr || !std::holds_alternative<int64_t>(*size)) return std::nullopt;
  const int64_t given = std::get<int64_t>(*size);
  return given < 0 ? std::numeric_limits<int64_t>::max() : given;
}

}  // namespace

std::optional<IndexBound> FindIndexBound(const Program& program, const Instruction& call,
                                         const program::DefUse& facts) {
  const auto* const row = std::find_if(std::begin(kIndexOps), std::end(kIndexOps),
                                       [&](const IndexOp& o) { return o.op == call.op; });
  if (row == std::end(kIndexOps) || call.operands.size() < 2) return std::nullopt;
  if (!HasCommonType(program, call)) return std::nullopt;
  const std::optional<int64_t> size = SizeOf(program, call, row->size);
  if (!size.has_value() || call.operands[1] == kNoValue) return std::nullopt;
  const ValueId index = Root(program, call.operands[1], facts);
  if (index == kNoValue) return std::nullopt;
  return IndexBound{index, *size};
}

bool Holds(const IndexBound& bound, absl::Span<const at::Tensor> tiles) {
  return std::all_of(tiles.begin(), tiles.end(), [&](const at::Tensor& tile) {
    if (!tile.is_cpu() || (tile.scalar_type() != at::kLong && tile.scalar_type() != at::kInt)) {
      return false;
    }
    const at::Tensor row = tile.contiguous();
    bool holds = true;
    AT_DISPATCH_INDEX_TYPES(row.scalar_type(), "index_bounds", [&] {
      const index_t* const index = row.const_data_ptr<index_t>();
      holds = std::all_of(index, index + row.numel(),
                          [&](int64_t i) { return i >= 0 && i < bound.size; });
    });
    return holds;
  });
}

}  // namespace spmd::runtime
