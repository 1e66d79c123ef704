// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/index_bounds.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/string_view.h"
#include "csrc/rules/registry.h"

namespace spmd::runtime {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

// The input whose elements the value `id` has; kNoValue if there is none.
ValueId Root(const Program& program, ValueId id, const program::DefUse& def_use) {
  while (def_use.maker(id) >= 0) {
    const Instruction& made = program.instructions[def_use.maker(id)];
    if (made.code != OpCode::kCall || !rules::FactsOf(made.op).same_elements) return kNoValue;
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

// The size in the attribute of that name, or that of the indexed dimension (OpFacts::index_bound).
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
                                         const program::DefUse& def_use) {
  const rules::OpFacts& facts = rules::FactsOf(call.op);
  if (facts.fails != rules::Failure::kOnIndices || call.operands.size() < 2) return std::nullopt;
  if (!HasCommonType(program, call)) return std::nullopt;
  const std::optional<int64_t> size = SizeOf(program, call, facts.index_bound);
  if (!size.has_value() || call.operands[1] == kNoValue) return std::nullopt;
  const ValueId index = Root(program, call.operands[1], def_use);
  if (index == kNoValue) return std::nullopt;
  return IndexBound{index, *size};
}

bool Holds(const IndexBound& bound, absl::Span<const at::Tensor> tiles) {
  return std::all_of(tiles.begin(), tiles.end(), [&](const at::Tensor& tile) {
    if (tile.is_cuda()) return true;
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
