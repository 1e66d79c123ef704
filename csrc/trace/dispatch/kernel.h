// SPDX-License-Identifier: Apache-2.0
// The boxed kernel at which every op of the device arrives, and the ways in which an op is done:
//
//   handlers  ops that the generic path would record wrongly (csrc/trace/ops/handlers.h)
//   generic   recorded as their functional twins (csrc/trace/dispatch/record_generic.h)
//   host      run at once on host copies (csrc/trace/dispatch/run_on_host.h)
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/trace/op/op_info.h"
#include "csrc/trace/recorder/replay.h"

namespace spmd::trace {

// The entry. Takes the lock and replays the call if it can (csrc/trace/recorder/replay.h);
// otherwise hands FakeTensors to Meta, or chooses one of the ways above.
void RunKernel(const OpInfo& op, torch::jit::Stack* stack);
// The two parts of RunKernel, for kernels that have no stack
// (csrc/trace/dispatch/unboxed_kernels.h).
bool RunFromRecording(const OpInfo& op, const CallArguments& args, ResultsTo results);
void RunAndRecord(const OpInfo& op, torch::jit::Stack* stack);
// Lets the running backward pass end in a cut, if it is one of several whose gradients add up.
// Called after each op, and after an inner pass (csrc/trace/recorder/graph_task.h). Requires: the
// session's lock is held.
void EndPassInCut(SessionState& state);
// Sets up autograd for the calling thread, if in grad mode. Views keep their own backward formulas
// instead of as_strided; for a view, this must happen before PyTorch's kernel above notes how the
// view was made. Backward passes stay on the thread that asks for them, as the CPU's do: recording
// is not worth another thread. A user's later settings are kept.
void PrepareAutograd();
// Called before an op writes the tensors of `list`.
// Throws: c10::Error for inference tensors in `list` outside inference mode, which have no
// versions.
void CheckWritable(at::TensorList list);
// Called after the op: gives each of `written` a new version. PyTorch's kernels do so for tensors,
// but leave tensors in lists to the device.
void CountWrites(at::TensorList written);

}  // namespace spmd::trace
