// SPDX-License-Identifier: Apache-2.0
// The boxed kernel that every op of the device arrives in, and the ways an op can go:
//
//   handlers  ops with a meaning of their own to the trace: views, copies, factories, random, …
//   generic   recorded as its functional twin; written arguments are rebound
//   host      run at once on host copies: data-dependent shapes, ops that PyTorch cannot infer
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/trace/op_info.h"
#include "csrc/trace/replay.h"
#include "csrc/trace/session_state.h"

namespace spmd::trace {

// The entry: takes the lock, replays the call where it can (csrc/trace/replay.h), else hands
// FakeTensors to Meta or chooses the way.
void RunKernel(const OpInfo& op, torch::jit::Stack* stack);
// Its two parts, for kernels that have no stack (csrc/trace/unboxed_kernels.h).
bool RunFromRecording(const OpInfo& op, const CallArguments& args, ResultsTo results);
void RunAndRecord(const OpInfo& op, torch::jit::Stack* stack);
// In grad mode, for the calling thread: views keep their own backward formulas instead of
// as_strided (for a view, call it before PyTorch's kernel above notes how it was made), and
// backward passes stay on the thread that asks for them, as the CPU's do: recording is no work for
// another one. What a user sets afterwards is left.
void PrepareAutograd();
// Before an op writes the tensors of a list. Throws: c10::Error for inference tensors out of
// inference mode, which have no versions.
void CheckWritable(at::TensorList list);
// After it: each has a new version. PyTorch's kernels count those of tensors, but leave those of
// lists to the device.
void CountWrites(at::TensorList written);

// Requires, for both: the lock is held; the arguments of `op` are on top of the stack.
void RunGeneric(Session::State& state, const OpInfo& op, torch::jit::Stack* stack);
void RunOnHost(Session::State& state, const OpInfo& op, torch::jit::Stack* stack);

// For handlers: an overload with out=, as the handler of the one without and a copy of its results.
void RunIntoOut(const OpInfo& op, torch::jit::Stack* stack);

// A user's op arrives whole from now on, even where it has a kernel that fits every device.
void TakeWhole(const c10::OperatorHandle& handle);
// Kernels above autograd. They stay while the handles do.
std::vector<c10::RegistrationHandleRAII> RegisterAutogradKernels();
// Ends the backward pass that is running in a cut if it is one of several whose gradients add up.
// `updates_first`: the op writes into its first operand.
void NoteMicroStep(Session::State& state, bool updates_first, int64_t graph_task);

// The arguments of `op`, taken off the stack; or left there.
std::vector<c10::IValue> PopArguments(const OpInfo& op, torch::jit::Stack* stack);
std::vector<c10::IValue> PeekArguments(const OpInfo& op, const torch::jit::Stack* stack);

// Handlers by op name, in a list for each handlers_*.cc (put together in register_kernels.cc).
// kReplayable: all that the handler does follows from the arguments (csrc/trace/replay.h).
inline constexpr bool kReplayable = true;
struct HandlerRow {
  const char* op;
  Handler handler;
  bool replayable = false;
};
absl::Span<const HandlerRow> ViewHandlers();
absl::Span<const HandlerRow> CopyHandlers();
absl::Span<const HandlerRow> CreationHandlers();
absl::Span<const HandlerRow> RandomHandlers();
absl::Span<const HandlerRow> StorageHandlers();
absl::Span<const HandlerRow> LayerHandlers();
absl::Span<const HandlerRow> BatchNormHandlers();
absl::Span<const HandlerRow> ComposedHandlers();
absl::Span<const HandlerRow> EmbeddingBagHandlers();
absl::Span<const HandlerRow> HistogramHandlers();
absl::Span<const HandlerRow> OptimizerHandlers();
absl::Span<const HandlerRow> SelectionHandlers();
absl::Span<const HandlerRow> SamplingHandlers();
absl::Span<const HandlerRow> CtcHandlers();
absl::Span<const HandlerRow> LeastSquaresHandlers();
absl::Span<const HandlerRow> TransformerHandlers();

}  // namespace spmd::trace
