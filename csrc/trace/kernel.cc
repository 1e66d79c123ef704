// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/kernel.h"

#include <c10/core/AutogradState.h>

#include "csrc/trace/device.h"
#include "csrc/trace/status_to_exception.h"
#include "csrc/trace/tensor.h"

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}  // namespace torch::autograd

namespace spmd::trace {

namespace {

// More pending records than this are run, whether or not anybody looks.
constexpr size_t kTapeBound = 50000;

bool IsForeign(const at::Tensor& t) {
  return t.defined() && t.device().type() == kDeviceType && !Buffer::IsOurs(t);
}

// A FakeTensor carries our key over a storage that is not ours.
bool HasForeign(const OpInfo& op, const torch::jit::Stack& stack) {
  const size_t begin = stack.size() - op.args.size();
  for (size_t i = 0; i < op.args.size(); ++i) {
    const c10::IValue& v = stack[begin + i];
    if (v.isTensor()) {
      if (IsForeign(v.toTensor())) return true;
    } else if (op.args[i].kind == ArgKind::kTensorList && v.isList()) {
      for (const c10::IValue& item : v.toListRef()) {
        if (item.isTensor() && IsForeign(item.toTensor())) return true;
      }
    }
  }
  return false;
}

void CheckUsable(Session::State& state) {
  TORCH_CHECK(!state.forked, "torch_spmd: this process was forked from one that had used the device; "
              "its tensors cannot be used here. Start workers with "
              "torch.multiprocessing.set_start_method('spawn'), or keep their tensors on the CPU");
}

}  // namespace

void RunKernel(const OpInfo& op, torch::jit::Stack* stack) {
  if (HasForeign(op, *stack)) {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  // Views keep their own backward formulas instead of as_strided.
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  if (!autograd.get_view_replay_enabled()) autograd.set_view_replay_enabled(true);
  SessionLock lock;
  CheckUsable(*lock);
  lock->used = true;
  if (lock->tape->records().size() > kTapeBound) ThrowIfError(Cut(*lock, "tape bound"));
  if (op.handler != nullptr) {
    op.handler(op, stack);
  } else {
    RunGeneric(*lock, op, stack);
  }
}

TapeId AppendRecord(Session::State& state, Record record, absl::Span<const TensorType> results) {
  Tape& tape = *state.tape;
  record.task = tape.TaskNumber(torch::autograd::get_current_graph_task_id());
  const TapeId first = tape.Append(std::move(record), results);
  ++state.statistics.records;
  if (state.hooks.current_line != nullptr && !state.known_prefixes.contains(tape.prefixes().back())) {
    tape.SetLine(state.hooks.current_line());
  }
  return first;
}

}  // namespace spmd::trace
