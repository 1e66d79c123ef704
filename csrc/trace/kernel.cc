// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/kernel.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <typeinfo>

#include "csrc/trace/device.h"
#include "csrc/trace/replay.h"
#include "csrc/trace/status_to_exception.h"
#include "csrc/trace/tensor.h"

namespace spmd::trace {

namespace {

bool IsForeign(const at::Tensor& t) {
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

void CheckUsable(Session::State& state) {
  TORCH_CHECK(!state.forked,
              "torch_spmd: this process was forked from one that had used the device; "
              "its tensors cannot be used here. Start workers with "
              "torch.multiprocessing.set_start_method('spawn'), or keep their tensors on the CPU");
}

// Advances this thread's sequence number past all that other threads have used. Autograd numbers
// its nodes per thread and runs later ones first, but nodes that a backward pass makes must come
// after all earlier nodes of any thread. (An op written into a view is a node of its own and a part
// of another node, which has to run before it.)
void CatchUpWithOtherThreads(Session::State& state) {
  if (!c10::GradMode::is_enabled()) return;
  while (at::sequence_number::peek() < state.latest_sequence) {
    at::sequence_number::get_and_increment();
  }
  state.latest_sequence = at::sequence_number::peek();
}

// The user's line; in a backward pass, the line of the forward op whose gradient is computed.
std::string CurrentLine(Session::State& state) {
  constexpr size_t kMost = 1 << 16;
  if (const auto node = torch::autograd::get_current_node(); node != nullptr) {
    const auto it = state.line_of_sequence.find(node->sequence_nr());
    return it == state.line_of_sequence.end() ? "" : it->second;
  }
  std::string line = state.hooks.current_line();
  if (line.empty()) return line;
  if (state.line_of_sequence.size() > kMost) state.line_of_sequence.clear();
  // The op's autograd node was made just before the op arrived here.
  state.line_of_sequence[at::sequence_number::peek() - 1] = line;
  return line;
}

// Lives while an op is recorded; true if the op is recorded as a part of another one.
class Nested {
 public:
  explicit Nested(Session::State& state) : depth_(state.depth) { ++depth_; }
  ~Nested() { --depth_; }
  Nested(const Nested&) = delete;
  explicit operator bool() const { return depth_ > 1; }

 private:
  int& depth_;
};

void EndRepeats(Session::State& state) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() >= 0;
  if (const char* const why = state.repeats.WhyEnd(*state.tape, in_backward)) {
    ThrowIfError(Cut(state, why));
  }
}

}  // namespace

void PrepareAutograd() {
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  if (!autograd.get_grad_mode() || autograd.get_view_replay_enabled()) return;
  autograd.set_view_replay_enabled(true);
  autograd.set_multithreading_enabled(false);
}

bool RunFromRecording(const OpInfo& op, const CallArguments& args, ResultsTo results) {
  SessionLock lock;
  return lock->options.replay && !lock->forked && Replay(*lock, op, args, results);
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
    if (t.is_inference()) torch::autograd::impl::bump_version(t);  // raises the error
  }
}

void CountWrites(at::TensorList written) {
  for (const at::Tensor& t : written) torch::autograd::impl::bump_version(t);
}

void RunAndRecord(const OpInfo& op, torch::jit::Stack* stack) {
  PrepareAutograd();
  CheckDevices(op, *stack);
  if (HasForeign(op, *stack)) {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  SessionLock lock;
  CheckUsable(*lock);
  lock->used = true;
  const Nested nested(*lock);
  // The tape is not cut within another op, whose handler refers to values by their numbers on the
  // tape.
  if (!nested && lock->repeats.IsDue(*lock->tape)) EndRepeats(*lock);
  std::optional<CallCapture> capture;
  if (lock->options.replay) capture.emplace(*lock, op, *stack);
  if (op.handler != nullptr) {
    op.handler(op, stack);
  } else {
    RunGeneric(*lock, op, stack);
  }
  if (capture) capture->Finish(*stack);
  CatchUpWithOtherThreads(*lock);
}

void NoteMicroStep(Session::State& state, bool updates_first, int64_t graph_task) {
  if (graph_task < 0 || state.ending_task == graph_task) return;
  if (state.last_task != graph_task) {
    state.last_task = graph_task;
    ++state.passes_since_step;
  }
  if (!state.accumulates && updates_first) {
    const auto node = torch::autograd::get_current_node();
    state.accumulates = node != nullptr && typeid(*node) == typeid(torch::autograd::AccumulateGrad);
  }
  if (!state.accumulates) return;
  state.ending_task = graph_task;
  torch::autograd::Engine::get_default_engine().queue_callback([graph_task] {
    SessionLock lock;
    ThrowIfError(Cut(*lock, "end of a backward pass", graph_task));
  });
}

namespace {

// Follows the recording that begins like the tape, if there is one. True if it now follows one.
bool FollowKnown(Session::State& state) {
  const auto it = state.known_prefixes.find(state.tape->strict());
  if (it == state.known_prefixes.end()) return false;
  RecordingPtr recording = it->second.recording.lock();
  if (recording == nullptr) {
    state.known_prefixes.erase(it);
    return false;
  }
  state.tape->Follow(std::move(recording), it->second.events);
  return true;
}

}  // namespace

TapeId AppendRecord(Session::State& state, Record record, absl::Span<const TensorType> results) {
  Tape& tape = *state.tape;
  const int64_t graph_task = torch::autograd::get_current_graph_task_id();
  NoteMicroStep(state, record.updates_first, graph_task);
  record.task = tape.TaskNumber(graph_task);
  const TapeId first = tape.Append(std::move(record), results);
  ++state.statistics.records;
  if (tape.following() || FollowKnown(state)) return first;
  if (state.hooks.current_line != nullptr) tape.SetLine(CurrentLine(state));
  return first;
}

}  // namespace spmd::trace
