// SPDX-License-Identifier: Apache-2.0
// The boxed kernel at which every op of the device arrives, and the ways in which an op is done:
//
//   handlers  ops that the generic path would record wrongly: views, copies, factories, random, …
//   generic   recorded as its functional twin; written arguments are rebound
//   host      run at once on host copies: data-dependent shapes, ops that PyTorch cannot infer
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/trace/op_info.h"
#include "csrc/trace/replay.h"

namespace spmd::trace {

struct SessionState;

// The entry. Takes the lock and replays the call if it can (csrc/trace/replay.h); otherwise hands
// FakeTensors to Meta, or chooses one of the ways above.
void RunKernel(const OpInfo& op, torch::jit::Stack* stack);
// The two parts of RunKernel, for kernels that have no stack (csrc/trace/unboxed_kernels.h).
bool RunFromRecording(const OpInfo& op, const CallArguments& args, ResultsTo results);
void RunAndRecord(const OpInfo& op, torch::jit::Stack* stack);
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

// Requires, for both: the session's lock is held; the arguments of `op` are on top of `stack`.
void RunGeneric(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);
void RunOnHost(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);

// For handlers: runs an overload with out= by the handler of the overload without it, and copies
// the results.
void RunIntoOut(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);

// From now on the user's op arrives undecomposed, even if it has a kernel that fits every device.
void TakeWhole(const c10::OperatorHandle& handle);
// Registers the kernels above autograd. They stay registered while the handles live.
std::vector<c10::RegistrationHandleRAII> RegisterAutogradKernels();
// The arguments of `op`. PopArguments takes them off the stack, PeekArguments leaves them there.
std::vector<c10::IValue> PopArguments(const OpInfo& op, torch::jit::Stack* stack);
std::vector<c10::IValue> PeekArguments(const OpInfo& op, const torch::jit::Stack* stack);

// Handlers by op name, one list for each handlers_*.cc; register_kernels.cc joins them. kReplayable
// means that everything that the handler does follows from its arguments (csrc/trace/replay.h).
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
