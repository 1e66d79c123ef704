// SPDX-License-Identifier: Apache-2.0
// A call instruction ready to run: its distinct tile computations, each with its operand tiles,
// result tiles and evaluated expressions.
//
// Devices with equal coordinates along all axes that the results use compute the same, so one of
// them computes it for all. The items of
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
#include "csrc/runtime/sharers.h"

namespace spmd::runtime {

// The tensors of every value while a program runs: table[value][index], see Placement.
using ValueTable = std::vector<std::vector<at::Tensor>>;

class CallStep {
 public:
  struct Context {
    const program::Program& program;
    const Backend& backend;
    absl::Span<const PlacementPtr> placements;  // by value
    absl::Span<const Sharers> sharers;          // by instruction
  };
  // Errors: InvalidArgument naming the op, if it cannot be bound.
  static absl::StatusOr<CallStep> Make(const Context& context, int instruction);
  // Makes the step of a call that replaces several calls of the program.
  static absl::StatusOr<CallStep> Make(const Context& context, const program::Instruction& call,
                                       const Sharers& sharers = {});

  int64_t num_items() const { return num_items_; }
  // The bytes that all items together read and write.
  int64_t bytes() const { return bytes_; }
  const OpBinding& binding() const { return binding_; }
  // Append the tiles that the item reads, operand by operand; the tiles that it writes; and the
  // wholes, that is the enclosing tiles of the part that it could overwrite.
  void AppendReads(int64_t item, std::vector<TileRef>& reads) const;
  void AppendWrites(int64_t item, std::vector<TileRef>& writes) const;
  void AppendWholes(int64_t item, std::vector<TileRef>& wholes) const;
  absl::Span<const program::ValueId> wholes() const { return sharers_.wholes; }
  // The range of devices that contains all devices which need the item's results.
  Scheduler::Devices DevicesOf(int64_t item) const;

  // The run-time scalars converted to the types of this op's arguments. They are the same for all
  // items of a run.
  std::vector<c10::IValue> ScalarValues(absl::Span<const c10::Scalar> scalars) const;

  // Makes room in `table` for the results. Called before any item runs.
  void PrepareResults(ValueTable& table) const;
  // Computes one item. It overwrites tiles of its operands where `work` permits it, the op can, and
  // nobody else holds their memory; the first operand's memory may also be shared with wholes into
  // which the item may write through. Throws what the op throws.
  // Thread safety: different items may run in parallel.
  void RunItem(const WorkItem& work, absl::Span<const c10::IValue> scalars,
               ValueTable& table) const;

  // By index: 1 if this tile of the result is known to be the identity of its reduction, else 0.
  // Empty if none is.
  const std::vector<uint8_t>& identity(int result) const { return identity_[result]; }

  int64_t HeapBytes() const;

 private:
  enum class ResultSource : uint8_t { kOp, kEmpty, kIdentity, kOtherItem };
  struct ResultTile {
    int32_t index = 0;
    ResultSource source = ResultSource::kOp;
  };
  static constexpr int32_t kAbsent = -1;  // the operand is None
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
  // The types of the tiles. Partial sums of half types are held in f32, and the op runs in f32.
  std::vector<DType> operand_types_, result_types_;
  std::vector<at::ScalarType> given_types_;  // by operand: the type that the op is given
  bool widens_ = false;                      // some result is held in a wider type than its own
  std::vector<ReduceKind> result_kinds_;
  int64_t num_items_ = 0;
  int64_t bytes_ = 0;
  const Backend* backend_ = nullptr;
  std::vector<Place> places_;             // by item
  std::vector<int32_t> operand_tiles_;    // by item, operand: index or kAbsent, kZeros
  std::vector<ResultTile> result_tiles_;  // by item, result
  std::vector<uint8_t> computed_;         // by item: some result comes from the op
  std::vector<std::vector<c10::IValue>> expression_values_;  // by item; one entry if all are equal
  std::vector<std::vector<uint8_t>> identity_;
  std::vector<int> overwritten_;  // by result: the operand; empty if nothing is overwritten
  std::vector<uint8_t>
      takes_;  // by item: which of the tiles that it reads are overwritten, as bits
  std::vector<Scheduler::Devices> wanted_;  // by item
  Sharers sharers_;
};

}  // namespace spmd::runtime
