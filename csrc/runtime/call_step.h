// SPDX-License-Identifier: Apache-2.0
// A call instruction ready to run: its distinct tile computations, each with its operand tiles,
// result tiles and evaluated expressions.
//
// Devices equal in all axes that a result uses compute the same, once: the items of
//   %0: f32[32,256] {data},{} unreduced(sum){model} = call …      on [data=2, model=4, pipe=2]
// are the 8 coordinates of (data, model), each run at the first device that has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/op_binding.h"
#include "csrc/runtime/placement.h"
#include "csrc/runtime/schedule.h"
#include "csrc/runtime/write_through.h"

namespace spmd::runtime {

// The tensors of every value while a program runs, by value and index.
using ValueTable = std::vector<std::vector<at::Tensor>>;

class CallStep {
 public:
  struct Context {
    const program::Program& program;
    const Backend& backend;
    absl::Span<const PlacementPtr> placements;  // by value
    absl::Span<const Sharers> sharers;          // by instruction
  };
  // Errors: InvalidArgument naming the op.
  static absl::StatusOr<CallStep> Make(const Context& context, int instruction);
  // A call that stands for several of the program's.
  static absl::StatusOr<CallStep> Make(const Context& context, const program::Instruction& call,
                                       const Sharers& sharers = {});

  int64_t num_items() const { return num_items_; }
  // Bytes that all items read and write.
  int64_t bytes() const { return bytes_; }
  const OpBinding& binding() const { return binding_; }
  // What the item reads, operand by operand, and makes; and the wholes of the part that it could
  // overwrite.
  void AppendReads(int64_t item, std::vector<TileRef>& reads) const;
  void AppendWrites(int64_t item, std::vector<TileRef>& writes) const;
  void AppendWholes(int64_t item, std::vector<TileRef>& wholes) const;
  absl::Span<const program::ValueId> wholes() const { return sharers_.wholes; }
  // The devices that want the item's results lie between these.
  Scheduler::Devices DevicesOf(int64_t item) const;

  // The run-time scalars as this op's arguments take them; the same for all items of a run.
  std::vector<c10::IValue> ScalarValues(absl::Span<const c10::Scalar> scalars) const;

  // Makes room for the results. Before any item runs.
  void PrepareResults(ValueTable& table) const;
  // Computes one item, over the tiles of its operands where those may be taken, they could be
  // overwritten and their memory is not shared, or the first's only with wholes that the item may
  // write through to. Throws what the op throws. Thread safety: items may run in parallel.
  void RunItem(const WorkItem& work, absl::Span<const c10::IValue> scalars,
               ValueTable& table) const;

  // Which results' tiles of value `id` are known to be the identity of their reduction; 0 or 1 by
  // index, empty when none is.
  const std::vector<uint8_t>& identity(int result) const { return identity_[result]; }

  int64_t HeapBytes() const;

 private:
  enum class ResultSource : uint8_t { kOp, kEmpty, kIdentity, kOtherItem };
  struct ResultTile {
    int32_t index = 0;
    ResultSource source = ResultSource::kOp;
  };
  static constexpr int32_t kAbsent = -1;  // not there: None
  static constexpr int32_t kZeros = -2;   // an operand added once, at another coordinate

  absl::Status PlanTypes(const Context& context, const program::Instruction& call);
  absl::Status PlanItems(const Context& context, const program::Instruction& call);
  void PlanOperands(const program::Instruction& call, absl::Span<const int64_t> positions);
  void PlanResults(const program::Instruction& call, absl::Span<const int64_t> positions);
  void PlanExpressions(const program::Instruction& call, absl::Span<const int64_t> positions);
  void PlanOverwriting(const Sharers& sharers);
  bool ReducedOperandIsEmpty(int64_t item) const;
  bool Computed(int64_t item) const;
  uint8_t TakenBy(int64_t item) const;
  bool MayRunInPlace(const WorkItem& work, const ValueTable& table) const;
  bool MayWriteInto(const at::Tensor& tile, int32_t index, bool may_write_through,
                    const ValueTable& table) const;
  at::Tensor OperandTile(int64_t item, int operand, ValueTable& table) const;
  at::Tensor HeldTile(int64_t item, int operand, ValueTable& table) const;
  void StoreResults(int64_t item, torch::jit::Stack& stack, ValueTable& table) const;
  void StoreUncomputed(int64_t item, ValueTable& table) const;

  OpBinding binding_;
  std::vector<program::ValueId> operands_, results_;
  std::vector<PlacementPtr> operand_places_, result_places_;  // null for an absent operand
  // Of the tiles: terms of half types are held in f32, and the op runs in f32.
  std::vector<DType> operand_types_, result_types_;
  std::vector<at::ScalarType> given_types_;  // by operand: as the op takes it
  bool widens_ = false;                      // some result is held in a wider type than its own
  std::vector<ReduceKind> result_kinds_;
  int64_t num_items_ = 0;
  int64_t bytes_ = 0;
  std::vector<c10::Device> devices_;      // by item
  std::vector<int32_t> operand_tiles_;    // by item, operand: index or kAbsent, kZeros
  std::vector<ResultTile> result_tiles_;  // by item, result
  std::vector<uint8_t> computed_;         // by item: some result comes from the op
  std::vector<std::vector<c10::IValue>> expression_values_;  // by item (one for all if equal)
  std::vector<std::vector<uint8_t>> identity_;
  std::vector<int> overwritten_;  // by result, the operand; empty where nothing is overwritten
  std::vector<uint8_t>
      takes_;  // by item: which of the tiles that it reads are overwritten, as bits
  std::vector<Scheduler::Devices> wanted_;  // by item
  Sharers sharers_;
};

}  // namespace spmd::runtime
