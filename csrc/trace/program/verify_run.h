// SPDX-License-Identifier: Apache-2.0
// With SPMD_VERIFY=1 every program is run a second time, unsharded, on the same inputs.
#pragma once

#include <c10/core/Scalar.h>

#include <vector>

#include "absl/status/status.h"
#include "csrc/runtime/executor_queue.h"
#include "csrc/trace/program/compiled_program.h"
#include "csrc/trace/program/single_node.h"

namespace spmd::trace {

// Copies the arguments to the host, with the other processes of the job. Waits for the runs that
// make them. Errors: those of the runs; an error if the backend only plans.
absl::StatusOr<GraphInputs> RecordInputs(
    const std::vector<runtime::ExecutorQueue::Argument>& arguments,
    const std::vector<c10::Scalar>& scalars, runtime::Peers* peers);

// Waits for `run` and compares each of its results with the unsharded program's. If one differs by
// more than rounding explains, the sharded program is run again with all its values as results. The
// message names the first op that computes something else from its operands when it runs alone and
// unsharded.
// Errors: Internal with that op's name, line, layout and largest difference; those of `run`.
absl::Status CompareWithUnsharded(const CompiledProgram& program, const GraphInputs& given,
                                  runtime::PendingRun& run, runtime::Peers* peers);

}  // namespace spmd::trace
