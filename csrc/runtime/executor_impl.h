// SPDX-License-Identifier: Apache-2.0
// The implementation of LoadedProgram: load.cc and order.cc prepare it, run.cc runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/program/def_use.h"
#include "csrc/runtime/call_step.h"
#include "csrc/runtime/executor.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/one_place/index_bounds.h"
#include "csrc/runtime/one_place/sum_of_products.h"
#include "csrc/runtime/placement.h"
#include "csrc/runtime/schedule.h"

namespace spmd::runtime {

using MovePlanPtr = std::shared_ptr<const MovePlan>;

// A move instruction: it moves several values in the same way.
struct MoveStep {
  struct Part {
    program::ValueId from;
    program::ValueId to;
    MovePlanPtr plan;
    std::vector<uint8_t> identity;  // by index of `from`; see MoveRequest
    // Set if the sum computes the products that are its partial sums.
    std::shared_ptr<const SumOfProducts> products = nullptr;
  };
  std::vector<Part> parts;
  double fill = 0;
  // True if processes send to each other: every one of them then takes part.
  bool exchanges = false;
};

// A free has no step (monostate), because the schedule knows when tiles die.
using Step = std::variant<std::monostate, CallStep, MoveStep>;

// How the tiles of a program are held while it runs.
struct Holding {
  // There is a tensor for each device position instead of one for each distinct tile.
  bool per_position = false;
  // All devices are virtual ones of one CPU, and the program may make use of that.
  bool shares_cpu = false;
  // Arguments and results are whole, since the program that runs is coalesced: it has tiles along
  // the axes `kept` only.
  bool coalesced = false;
  AxisMask kept = 0;
  int64_t devices_per_process = 0;  // see Homes

  bool has_one_tile() const { return coalesced && kept == 0; }
};

struct LoadedProgram::Impl {
  // `p` is the program that runs, `w` the one that was loaded: `p` itself, or the program of which
  // `p` was made for devices at one place.
  Impl(const program::Program& p, const program::Program& w, Holding h, const Backend& b, Options o)
      : program(p), written(w), held(h), backend(b), options(o) {}

  absl::Status Load();
  absl::StatusOr<std::vector<TiledTensorPtr>> Run(absl::Span<Argument> inputs,
                                                  const std::vector<c10::Scalar>& scalars);
  int64_t HeapBytes() const;

 private:
  absl::StatusOr<MoveStep> MakeMove(int instruction);
  // Lets a sum compute the products that are its partial sums, where it can.
  absl::Status SumProducts(const CallStep::Context& context, const program::DefUse& facts,
                           MoveStep& move);
  void MakeSchedule();
  Schedule ScheduleInWavesOf(int64_t devices) const;
  int64_t PeakBytes(const Schedule& order) const;
  void AddToSchedule(int step, const CallStep& call, Scheduler& scheduler) const;
  void AddToSchedule(int step, const MoveStep& move, Scheduler& scheduler) const;
  void FindCommit();
  // The batch before which this run takes its donated arguments.
  size_t CommitOfRun() const;
  // With several processes: when they vote, the same in every process.
  void FindVotes();

  // Finds what runs during exchanges.
  void FindOverlaps();

  // How this process has failed, with several processes, until they vote.
  struct Failure {
    absl::Status status;
    int step = 0;
  };
  absl::Status Bring(absl::Span<Argument> inputs, Failure& failed);
  absl::Status RunSteps(absl::Span<Argument> inputs, const std::vector<c10::Scalar>& scalars,
                        Failure& failed);
  Failure FailureOf(const std::exception& e, int step) const;
  void TakeArguments(absl::Span<Argument> inputs) const;
  void DropDead(const Batch& batch);
  // Instructions as observers see them. Null if nothing observes this thread.
  const std::vector<std::string>* NamesForObservers();
  void RunCall(const CallStep& step, const Batch& batch, const std::vector<c10::Scalar>& scalars);
  absl::Status RunBatch(const Batch& batch, const std::vector<c10::Scalar>& scalars);
  absl::Status RunMove(const MoveStep& step, const Batch& batch);
  // Does what a batch does for other processes although this one has failed: it sends zeros.
  absl::Status RunForOthers(const Step& step);
  absl::Status Exchange(const MoveStep& step, bool failed, TakeSlots take);
  void MakeTilesOfSlots(const MoveStep& step, const Batch& batch,
                        std::vector<std::vector<at::Tensor>> slots, bool borrowed);
  void MakeTile(const MoveStep& step, const WorkItem& item);
  void RunSumsOfProducts(const MoveStep& step, absl::Span<const WorkItem* const> items);
  void ComputeSums(const MoveStep& step, absl::Span<const WorkItem> items);
  at::Tensor PutTogether(program::ValueId id);
  std::vector<TiledTensorPtr> TakeOutputs();
  std::vector<TiledTensorPtr> PlannedOutputs();

  const program::Program& program;
  const program::Program& written;
  const Holding held;
  const Backend& backend;
  const Options options;
  std::vector<PlacementPtr> placements;        // by value
  std::vector<std::vector<uint8_t>> identity;  // by value: see CallStep::identity
  std::vector<Step> steps;                     // by instruction
  Schedule schedule;
  // By the placements and whether partial sums are sent one by one.
  absl::flat_hash_map<std::tuple<const Placement*, const Placement*, bool>, MovePlanPtr> plans;
  size_t commit = 0;        // donated arguments are taken before this batch,
  size_t early_commit = 0;  // or before this one if all `bounds` hold
  std::vector<IndexBound> bounds;
  // With several processes: they vote when the program has ended. If the commit comes earlier,
  // arguments are taken there, and the processes vote before it as well, unless it is at the start.
  enum class Votes : uint8_t { kNever, kBeforeCommit, kTwice, kAfterCommit };
  Votes votes = Votes::kNever;
  // By batch: the one before which an exchange that begins there must have ended, if it goes on
  // beside those in between; else 0. Empty if none does.
  std::vector<size_t> ends_before;
  uint64_t fingerprint = 0;  // with several processes: of the program's text
  ValueTable table;
  std::vector<TiledTensor> planned;  // by output; made by the first run that only plans
  std::vector<std::string> names;    // by instruction; made by the first run that is observed
};

// "aten::mm(f32[2,3], f32[3,4]) at train.py:12", for messages.
std::string DescribeInstruction(const program::Program& program, int instruction);
// By instruction: "aten::mm at train.py:12", "all_reduce of aten::mm at train.py:12".
std::vector<std::string> NameInstructions(const program::Program& program);

}  // namespace spmd::runtime
