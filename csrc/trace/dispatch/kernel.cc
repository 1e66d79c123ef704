// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/dispatch/kernel.h"

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <typeinfo>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/compat/keys.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/shard_impl.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/recorder/capture.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/region.h"
#include "csrc/trace/recorder/replay.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace {

bool IsForeign(const at::Tensor& t) {
  TORCH_CHECK_VALUE(!t.defined() || ShardImpl::Of(t) == nullptr,
                    "a shard of a manual region is used after the region has ended, or by another "
                    "thread; return it from the function that shard_map runs");
  return t.defined() && t.device().type() == kDeviceType && !Buffer::IsOurs(t);
}

// True if there is a FakeTensor among the arguments: it has the device's key and a storage of
// another device.
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

// Checks that no argument names another device index, since there is only one device.
void CheckDevices(const OpInfo& op, const torch::jit::Stack& stack) {
  for (size_t i = stack.size() - op.args.size(); i < stack.size(); ++i) {
    if (!stack[i].isDevice()) continue;
    const c10::Device device = stack[i].toDevice();
    TORCH_CHECK(device.type() != kDeviceType || device.index() <= 0, "torch_spmd has one device, '",
                TheDevice(), "'; got '", device,
                "'; the devices of a mesh are chosen by mark_sharding, not by index");
  }
}

void CheckUsable() {
  TORCH_CHECK(!session_flags.forked,
              "torch_spmd: this process was forked from one that had used the device; "
              "its tensors cannot be used here. Start workers with "
              "torch.multiprocessing.set_start_method('spawn'), or keep their tensors on the CPU");
}

// Lives while an op is recorded; true if the op is recorded as a part of another one.
class Nested {
 public:
  explicit Nested(SessionState& state) : depth_(state.call.depth) { ++depth_; }
  ~Nested() { --depth_; }
  Nested(const Nested&) = delete;
  explicit operator bool() const { return depth_ > 1; }

 private:
  int& depth_;
};

// False if an input only has a shape (csrc/trace/run/traced_graph.h): such a tape is looked at, and
// does not end by itself.
bool CanRun(const Tape& tape) {
  return std::none_of(tape.inputs().begin(), tape.inputs().end(), [&](const TapeInput& input) {
    const at::Tensor& host = tape.value(input.id)->host;
    return host.defined() && host.is_meta();
  });
}

// True for views and for copies of what is on the host: nothing is recorded until an op uses them.
bool WaitsToBeUsed(const OpInfo& op, const CallArguments& args) {
  if (op.is_view) return true;
  return op.copies_tensor && args.values[0].isTensor() &&
         !Buffer::IsOurs(args.values[0].toTensor());
}

// True within torch.jit.trace, for an op that it has not recorded; it does not look into those that
// it has. Few ops are not (csrc/trace/ops/layer.cc).
bool IsUnseenByTracer() { return compat::TracerSeesOps(); }

void EndRepeats(SessionState& state) {
  const bool in_backward = GraphTask() >= 0;
  const char* const why = state.repeats.WhyEnd(*state.tape, in_backward);
  if (why != nullptr && CanRun(*state.tape)) ThrowIfError(Cut(state, why));
}

}  // namespace

void EndPassInCut(SessionState& state) {
  if (InnerPasses::Outer().has_value()) return;  // the outer one ends in it, when this one is over
  const int64_t task = state.micro_steps.TakeEnding();
  if (task < 0) return;
  torch::autograd::Engine::get_default_engine().queue_callback([task] {
    SessionLock lock;
    if (CanRun(*lock->tape)) ThrowIfError(Cut(*lock, "end of a backward pass", task));
  });
}

void PrepareAutograd() {
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  if (!autograd.get_grad_mode() || autograd.get_view_replay_enabled()) return;
  autograd.set_view_replay_enabled(true);
  autograd.set_multithreading_enabled(false);
}

bool RunFromRecording(const OpInfo& op, const CallArguments& args, ResultsTo results) {
  if (shard_ops != nullptr && shard_ops->Call(op, args, results)) return true;
  SessionLock lock;
  if (regions_entered > 0) WatchRegion(op, args);
  if (StepWaits() && lock->call.depth == 0 && !WaitsToBeUsed(op, args)) {
    ThrowIfError(RunWaitingStep(*lock));
  }
  if (!lock->options.replay || session_flags.forked || IsUnseenByTracer()) return false;
  if (!Replay(*lock, op, args, results)) return false;
  EndPassInCut(*lock);
  return true;
}

void RunKernel(const OpInfo& op, torch::jit::Stack* stack) {
  const size_t n = op.args.size();
  CallResults results;
  const auto args = absl::MakeConstSpan(&(*stack)[stack->size() - n], n);
  if (op.is_view) PrepareAutograd();
  std::vector<at::Tensor> written;
  if (op.is_foreach && !op.written.empty()) written = args[op.written.front()].toTensorVector();
  CheckWritable(written);
  if (RunFromRecording(op, {args}, {.list = &results})) {
    torch::jit::drop(*stack, n);
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  } else {
    RunAndRecord(op, stack);
  }
  CountWrites(written);
}

void CheckWritable(at::TensorList list) {
  if (c10::InferenceMode::is_enabled()) return;
  for (const at::Tensor& t : list) {
    if (t.is_inference()) compat::CountWrite(t);  // raises the error
  }
}

void CountWrites(at::TensorList written) {
  for (const at::Tensor& t : written) compat::CountWrite(t);
}

void RunAndRecord(const OpInfo& op, torch::jit::Stack* stack) {
  ShardOps* const shards = std::exchange(shard_ops, nullptr);  // its parts are no ops of a region
  const absl::Cleanup restore = [shards] { shard_ops = shards; };
  PrepareAutograd();
  CheckDevices(op, *stack);
  if (HasForeign(op, *stack)) {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  SessionLock lock;
  CheckUsable();
  session_flags.used = true;
  const Nested nested(*lock);
  // The tape is not cut within another op, whose handler refers to values by their numbers on the
  // tape.
  if (!nested && lock->repeats.IsDue(*lock->tape)) EndRepeats(*lock);
  std::optional<CallCapture> capture;
  if (lock->options.replay) capture.emplace(*lock, op, *stack);
  if (op.handler != nullptr) {
    op.handler(*lock, op, stack);
  } else {
    RunGeneric(*lock, op, stack);
  }
  if (capture) capture->Finish(*stack);
  EndPassInCut(*lock);
  lock->lines.CatchUpWithOtherThreads();
}

}  // namespace spmd::trace
