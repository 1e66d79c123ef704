// SPDX-License-Identifier: Apache-2.0
// The heap memory that a loaded program takes.
#include "csrc/program/heap_bytes.h"

#include "absl/container/flat_hash_set.h"
#include "csrc/runtime/executor_impl.h"

namespace spmd::runtime {

using spmd::HeapBytes;

int64_t HeapBytes(const Placement& p) {
  return static_cast<int64_t>(sizeof(Placement)) + HeapBytes(p.intervals_) +
         HeapBytes(p.windowed_) + HeapBytes(p.orders_) + HeapBytes(p.stride_) +
         HeapBytes(p.tile_at_) + HeapBytes(p.first_position_) + HeapBytes(p.index_at_) +
         HeapBytes(p.position_of_) + HeapBytes(p.dims_) + HeapBytes(p.empty_);
}

namespace {

// An IValue holds numbers in place; strings and lists are on the heap.
int64_t BytesOf(const c10::IValue& value) {
  if (value.isString()) return static_cast<int64_t>(value.toStringRef().size()) + 64;
  if (!value.isList()) return 0;
  return 64 + static_cast<int64_t>(value.toListRef().size() * sizeof(c10::IValue));
}

int64_t BytesOf(const std::vector<c10::IValue>& values) {
  int64_t bytes = static_cast<int64_t>(values.capacity() * sizeof(c10::IValue)) + kBlockBytes;
  for (const c10::IValue& value : values) bytes += BytesOf(value);
  return bytes;
}

int64_t BytesOf(const OpBinding& binding) {
  int64_t bytes = HeapBytes(binding.name) + HeapBytes(binding.overwritten) +
                  BytesOf(binding.constants) + HeapBytes(binding.tensors) +
                  HeapBytes(binding.groups) + HeapBytes(binding.devices);
  bytes += static_cast<int64_t>(binding.scalars.capacity() * sizeof(OpBinding::ScalarArgument));
  for (const OpBinding::ExpressionArgument& e : binding.expressions) {
    bytes += static_cast<int64_t>(sizeof(e)) + HeapBytes(e.expressions);
  }
  return bytes;
}

int64_t BytesOf(const MovePlan& plan) {
  int64_t bytes = sizeof(MovePlan);
  for (const TileMove& tile : plan.tiles) {
    bytes += static_cast<int64_t>(sizeof(tile)) + HeapBytes(tile.dims);
    for (const std::vector<Piece>& term : tile.terms) {
      bytes += static_cast<int64_t>(sizeof(term) + term.capacity() * sizeof(Piece)) + kBlockBytes;
    }
  }
  return bytes;
}

int64_t BytesOf(const Sharers& sharers) { return HeapBytes(sharers.wholes); }

int64_t BytesOf(const MoveStep& move) {
  int64_t bytes =
      static_cast<int64_t>(move.parts.capacity() * sizeof(MoveStep::Part)) + kBlockBytes;
  for (const MoveStep::Part& part : move.parts) {
    bytes += HeapBytes(part.identity);
    if (part.products != nullptr) bytes += part.products->HeapBytes();
  }
  return bytes;
}

}  // namespace

int64_t CallStep::HeapBytes() const {
  using spmd::HeapBytes;
  int64_t bytes = BytesOf(binding_) + HeapBytes(operands_) + HeapBytes(results_) +
                  HeapBytes(operand_places_) + HeapBytes(result_places_) +
                  HeapBytes(operand_types_) + HeapBytes(result_types_) + HeapBytes(result_kinds_) +
                  HeapBytes(places_) + HeapBytes(operand_tiles_) + HeapBytes(result_tiles_) +
                  HeapBytes(computed_) + HeapBytes(identity_) + HeapBytes(overwritten_) +
                  HeapBytes(takes_) + HeapBytes(wanted_) + BytesOf(sharers_);
  for (const std::vector<c10::IValue>& values : expression_values_) {
    bytes += static_cast<int64_t>(sizeof(values)) + BytesOf(values);
  }
  return bytes;
}

int64_t SumOfProducts::HeapBytes() const {
  using spmd::HeapBytes;
  int64_t bytes = sizeof(SumOfProducts);
  for (const Factor& factor : factors_) {
    bytes += static_cast<int64_t>(sizeof(factor)) + factor.call.HeapBytes() +
             HeapBytes(factor.item_of_tile);
  }
  for (const Tile& tile : tiles_) {
    bytes += static_cast<int64_t>(sizeof(tile)) + HeapBytes(tile.sum_dims) + HeapBytes(tile.dims) +
             HeapBytes(tile.terms);
  }
  return bytes;
}

int64_t LoadedProgram::Impl::HeapBytes() const {
  using runtime::HeapBytes;
  int64_t bytes = HeapBytes(placements) + HeapBytes(identity) + HeapBytes(bounds) +
                  HeapBytes(schedule.batches) + HeapBytes(schedule.items) +
                  HeapBytes(schedule.dead) + spmd::HeapBytes(ends_before) + spmd::HeapBytes(names);
  bytes += static_cast<int64_t>(table.capacity() * sizeof(table[0]));
  absl::flat_hash_set<const Placement*> counted;
  for (const PlacementPtr& placement : placements) {
    if (counted.insert(placement.get()).second) bytes += HeapBytes(*placement);
  }
  for (const auto& [places, plan] : plans) bytes += sizeof(places) + BytesOf(*plan);
  bytes += static_cast<int64_t>(steps.capacity() * sizeof(Step));
  for (const Step& step : steps) {
    if (const auto* const call = std::get_if<CallStep>(&step)) bytes += call->HeapBytes();
    if (const auto* const move = std::get_if<MoveStep>(&step)) bytes += BytesOf(*move);
  }
  return bytes;
}

int64_t LoadedProgram::HeapBytes() const {
  using spmd::HeapBytes;
  int64_t bytes = sizeof(LoadedProgram) + sizeof(Impl) + HeapBytes(program_) + impl_->HeapBytes();
  if (rewritten_.has_value()) bytes += HeapBytes(*rewritten_);
  return bytes;
}

}  // namespace spmd::runtime
