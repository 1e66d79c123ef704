// SPDX-License-Identifier: Apache-2.0
// The inside of LoadedProgram: what load.cc and order.cc make and run.cc runs.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/runtime/call_step.h"
#include "csrc/runtime/executor.h"
#include "csrc/runtime/fused_sums.h"
#include "csrc/runtime/index_bounds.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/placement.h"
#include "csrc/runtime/schedule.h"
#include "csrc/runtime/sum_of_products.h"

namespace spmd::runtime {

using MovePlanPtr = std::shared_ptr<const MovePlan>;

// A move instruction: several values moved alike.
struct MoveStep {
  struct Part {
    program::ValueId from;
    program::ValueId to;
    MovePlanPtr plan;
    std::vector<uint8_t> identity;  // of the sources; see MoveRequest
    // Where the terms are computed by the sum.
    std::shared_ptr<const SumOfProducts> products = nullptr;
  };
  std::vector<Part> parts;
  double fill = 0;
};

// Nothing stands for a free: the schedule knows when tiles die.
using Step = std::variant<std::monostate, CallStep, MoveStep>;

// An eighth of the devices' intermediates is little beside what all of them share.
inline constexpr int64_t kMostWaves = 8;

struct LoadedProgram::Impl {
  // `p` is what runs; `w`, what was loaded, is `p` or what `p` was coalesced from.
  // `k`: the axes that coalescing kept.
  Impl(const program::Program& p, const program::Program& w, AxisMask k, const Backend& b,
       Options o)
      : program(p), written(w), coalesced(&p != &w), kept(k), backend(b), options(o) {}

  absl::Status Load();
  absl::StatusOr<std::vector<TiledTensorPtr>> Run(absl::Span<Argument> inputs,
                                                  const std::vector<c10::Scalar>& scalars);
  int64_t HeapBytes() const;

 private:
  absl::Status FindPlaces();
  void FindWhatOutlives();
  absl::StatusOr<MoveStep> MakeMove(int instruction);
  // Leaves the products of terms to the sums.
  absl::Status FuseSums(const CallStep::Context& context, const FusedSums& fused, MoveStep& move);
  void MakeSchedule();
  Schedule ScheduleInWavesOf(int64_t devices) const;
  int64_t PeakBytes(const Schedule& order) const;
  void AddToSchedule(int step, const CallStep& call, Scheduler& scheduler) const;
  void AddToSchedule(int step, const MoveStep& move, Scheduler& scheduler) const;
  void FindCommit();
  // The batch before which donated arguments are taken, in this run.
  size_t CommitOfRun() const;

  absl::Status Bring(absl::Span<Argument> inputs);
  absl::Status RunSteps(absl::Span<Argument> inputs, const std::vector<c10::Scalar>& scalars);
  void RunCall(const CallStep& step, const Batch& batch, const std::vector<c10::Scalar>& scalars);
  void RunMove(const MoveStep& step, const Batch& batch);
  void MakeTile(const MoveStep& step, const WorkItem& item);
  void RunSumsOfProducts(const MoveStep& step, absl::Span<const WorkItem* const> items);
  void ComputeSums(const MoveStep& step, absl::Span<const WorkItem> items);
  at::Tensor PutTogether(program::ValueId id);
  std::vector<TiledTensorPtr> TakeOutputs();
  std::vector<TiledTensorPtr> PlannedOutputs();

  const program::Program& program;
  const program::Program& written;
  const bool coalesced;
  const AxisMask kept;
  const Backend& backend;
  const Options options;
  bool per_position = false;
  bool on_cpu = true;
  std::vector<PlacementPtr> placements;        // by value
  std::vector<uint8_t> outlives;               // by value: an output, or an input not donated
  std::vector<std::vector<uint8_t>> identity;  // by value: see CallStep::identity
  std::vector<Step> steps;                     // by instruction
  Schedule schedule;
  absl::flat_hash_map<std::pair<const Placement*, const Placement*>, MovePlanPtr> plans;
  size_t commit = 0;        // donated arguments are taken before this batch,
  size_t early_commit = 0;  // or before this one where all `bounds` hold
  std::vector<IndexBound> bounds;
  ValueTable table;
  std::vector<TiledTensor> planned;  // by output; made by the first run that only plans
};

// All devices of the program are the same torch device, and it computes.
bool AtOnePlace(const program::Program& program, const Backend& backend);

// "aten::mm(f32[2,3], f32[3,4]) at train.py:12", for messages.
std::string DescribeInstruction(const program::Program& program, int instruction);

}  // namespace spmd::runtime
