// SPDX-License-Identifier: Apache-2.0
// Programs that have been given to the executor's queue, in order, until their results are taken.
//
// A cut returns before its program has run; its results are Values with a run
// (csrc/trace/run/resolve.h). A failure is reported once, by the first thing that needs a value
// that is lost with it, or by the next sync.
//
// Thread safety: guarded by the session's lock; the queue has a thread of its own.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "csrc/runtime/executor_queue.h"
#include "csrc/trace/program/program_cache.h"
#include "csrc/trace/session/optimizer_step.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct RunInFlight {
  struct Argument {
    c10::weak_intrusive_ptr<Value> value;
    std::weak_ptr<runtime::PendingRun> run;  // the run that was to make it, if it was pending
    int output = -1;
  };
  runtime::PendingRunPtr run;
  CachedProgramPtr program;
  std::vector<c10::Scalar> scalars;
  std::vector<Argument> arguments;
  std::vector<c10::weak_intrusive_ptr<Value>> results;
  std::vector<StepPart> steps;       // the optimizer steps that its program computes
  bool reported = false;             // its failure has been raised once
  bool recovered = false;            // see csrc/trace/run/recover.h
  std::vector<absl::Status> errors;  // by result, after recovery: the failure by which it is lost
};

struct InFlight {
  // The entry of `run`; null if it is not in flight.
  RunInFlight* Find(const runtime::PendingRunPtr& run);

  std::unique_ptr<runtime::ExecutorQueue> queue;  // made when the first program runs
  std::deque<RunInFlight> runs;
  absl::Status unseen;  // an unreported failure that no value can report any more
};

}  // namespace spmd::trace
