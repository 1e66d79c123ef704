// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/region_gradient.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/op/define.h"
#include "csrc/trace/op/hash.h"
#include "csrc/trace/pytorch/autograd_keys.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/region.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace {

bool HasHooks(autograd::Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

// True if all that the node does is to call ops: a node that PyTorch generates from its table of
// derivatives, or one of ours. (The node of a function that is written in Python would ask Python,
// if it was asked by is_traceable; the generated nodes of views say that they are not.)
bool IsOfOps(const autograd::Node& node) {
  return compat::IsGenerated(node) ||
         dynamic_cast<const autograd::TraceableFunction*>(&node) != nullptr;
}

// The nodes that a region has made.
struct Inside {
  std::vector<autograd::Node*> nodes;  // from the result on
  autograd::edge_list out;             // the edges that leave the region, each once
  Hash128 structure;                   // of the nodes and of how they are connected
  bool replayable = true;              // nothing but ops, and nobody sees them
};

class Walk {
 public:
  explicit Walk(uint64_t first_node) : first_node_(first_node) {}

  Inside From(const autograd::Edge& root) {
    Number(root);
    for (size_t k = 0; k < inside_.nodes.size() && inside_.replayable; ++k) {
      autograd::Node& node = *inside_.nodes[k];
      inside_.replayable = IsOfOps(node) && !HasHooks(node);
      inside_.structure.Mix(reinterpret_cast<uintptr_t>(&typeid(node)));
      for (const autograd::Edge& edge : node.next_edges()) Number(edge);
    }
    return std::move(inside_);
  }

 private:
  bool IsInside(const autograd::Node& node) const {
    const uint64_t number = node.sequence_nr();  // the greatest one for leaves
    return number >= first_node_ && number != std::numeric_limits<uint64_t>::max();
  }

  void Number(const autograd::Edge& edge) {
    if (!edge.is_valid()) return inside_.structure.Mix(0);
    autograd::Node* const node = edge.function.get();
    if (IsInside(*node)) {
      inside_.structure.Mix(NumberOf(node) << 8 | 1);
    } else {
      const auto it = std::find(inside_.out.begin(), inside_.out.end(), edge);
      inside_.structure.Mix(static_cast<uint64_t>(it - inside_.out.begin()) << 8 | 2);
      if (it == inside_.out.end()) inside_.out.push_back(edge);
    }
    inside_.structure.Mix(edge.input_nr);
  }

  size_t NumberOf(autograd::Node* node) {
    std::vector<autograd::Node*>& nodes = inside_.nodes;
    constexpr size_t kFew = 16;  // which are found faster one by one
    if (nodes.size() <= kFew) {
      const auto it = std::find(nodes.begin(), nodes.end(), node);
      if (it != nodes.end()) return it - nodes.begin();
    } else {
      for (size_t k = numbers_.size(); k < nodes.size(); ++k) numbers_.emplace(nodes[k], k);
      if (const auto it = numbers_.find(node); it != numbers_.end()) return it->second;
    }
    nodes.push_back(node);
    return nodes.size() - 1;
  }

  const uint64_t first_node_;
  absl::flat_hash_map<const autograd::Node*, size_t> numbers_;  // if there are many
  Inside inside_;
};

// Where the gradients that leave a region are collected.
struct Collector final : compat::NodeLikeOthers {
  explicit Collector(const autograd::edge_list& out) : NodeLikeOthers(/*sequence_nr=*/0) {
    for (const autograd::Edge& edge : out) TakeInputOf(edge);
  }
  std::string name() const override { return "Collector"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

const OpInfo* region_gradient = nullptr;
struct RegionBackward;
thread_local RegionBackward* running = nullptr;  // whose call is recorded

struct RegionBackward final : autograd::Node {
  explicit RegionBackward(autograd::edge_list edges) : Node(std::move(edges)) {}

  std::string name() const override { return "RegionBackward"; }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(nodes.root.is_valid() || make_inside != nullptr, autograd::ERR_BACKWARD_TWICE);
    if (!gradients[0].defined()) return autograd::variable_list(num_outputs());
    return CanReplay(gradients[0]) ? AsCall(gradients) : RunInside(gradients[0]);
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex);
    nodes = {};
    make_inside = nullptr;
  }

  // Runs the nodes inside. They are left as they are, so that they can run again.
  autograd::variable_list RunInside(const at::Tensor& gradient) {
    std::vector<size_t> wanted;
    for (size_t k = 0; k < num_outputs(); ++k) {
      if (task_should_compute_output(k)) wanted.push_back(k);
    }
    autograd::variable_list results(num_outputs());
    if (wanted.empty()) return results;
    const Nodes made = nodes.root.is_valid() ? Nodes() : MakeInside();
    const Nodes& now = nodes.root.is_valid() ? nodes : made;
    {
      SessionLock session;  // what is noted of a pass is noted of this one, before the inner one
      session->micro_steps.Note(GraphTask(), /*updates_first=*/false);
    }
    const auto collector = NewNode<Collector>(next_edges());
    // Gradients are collected before they leave the region, since hooks of the nodes that they go
    // to are called later, by the pass that runs this node.
    std::vector<std::pair<autograd::Edge*, autograd::Edge>> redirected;
    const absl::Cleanup restore = [&redirected] {
      for (auto& [edge, before] : redirected) *edge = std::move(before);
    };
    for (autograd::Node* const node : now.inside) {
      for (autograd::Edge& edge : node->next_edges()) {
        const auto it = std::find(next_edges().begin(), next_edges().end(), edge);
        if (!edge.is_valid() || it == next_edges().end()) continue;
        const auto number = static_cast<uint32_t>(it - next_edges().begin());
        redirected.emplace_back(&edge, std::exchange(edge, autograd::Edge(collector, number)));
      }
    }
    autograd::edge_list outputs;
    for (const size_t k : wanted) outputs.emplace_back(collector, static_cast<uint32_t>(k));
    autograd::variable_list found;
    {
      const InnerPasses inner;
      found = autograd::Engine::get_default_engine().execute(
          {now.root}, {gradient}, /*keep_graph=*/true,
          /*create_graph=*/c10::AutogradState::get_tls_state().get_grad_mode(),
          /*accumulate_grad=*/false, outputs);
    }
    {
      SessionLock session;
      EndPassInCut(*session);
    }
    for (size_t i = 0; i < wanted.size(); ++i) results[wanted[i]] = std::move(found[i]);
    return results;
  }

  struct Nodes {
    autograd::Edge root;
    std::vector<autograd::Node*> inside;  // kept by `root`
  };
  Nodes nodes;  // without a root, `make_inside` makes them
  std::function<autograd::Edge()> make_inside;
  uint64_t tape = 0;
  std::mutex mutex;  // of what the nodes are
  JoinedRegionPtr joined;
  RegionFailuresPtr failures;

 private:
  // They are new each time: a pass that keeps the graph may lead to them in other ways, too, and
  // its end releases them.
  Nodes MakeInside() const {
    Nodes made;
    {
      const c10::AutoGradMode differentiates(true);
      made.root = make_inside();
    }
    absl::flat_hash_set<const autograd::Node*> seen;
    std::vector<autograd::Node*> left = {made.root.function.get()};
    while (!left.empty()) {
      autograd::Node* const node = left.back();
      left.pop_back();
      if (!seen.insert(node).second) continue;
      made.inside.push_back(node);
      for (const autograd::Edge& edge : node->next_edges()) {
        const bool leaves =
            std::find(next_edges().begin(), next_edges().end(), edge) != next_edges().end();
        if (edge.is_valid() && !leaves) left.push_back(edge.function.get());
      }
    }
    SessionLock session;
    ++failures->without_nodes;
    failures->lately = true;
    session->call.looked_at_values = true;  // a call that performs steps again is not replayed
    return made;
  }

  bool CanReplay(const at::Tensor& gradient) const {
    if (c10::AutogradState::get_tls_state().get_grad_mode() || !IsPlain(gradient) ||
        at::autocast::is_autocast_enabled(kDeviceType) || autograd::AnomalyMode::is_enabled()) {
      return false;
    }
    for (size_t k = 0; k < num_outputs(); ++k) {
      if (!task_should_compute_output(k)) return false;
    }
    if (std::any_of(nodes.inside.begin(), nodes.inside.end(),
                    [](autograd::Node* n) { return HasHooks(*n); })) {
      return false;
    }
    SessionLock session;
    return session->tape->number() == tape && session->options.replay;
  }

  autograd::variable_list AsCall(const autograd::variable_list& gradients) {
    const std::array<int64_t, 5> key = [this] {
      SessionLock session;
      return joined->key;
    }();
    const c10::IValue in_lists[2];
    const BorrowedList lists[2] = {at::TensorList(gradients), at::IntArrayRef(key)};
    std::vector<at::Tensor> results;
    if (RunFromRecording(*region_gradient, {in_lists, lists}, {.tensors = &results})) {
      return results;
    }
    torch::jit::Stack stack{gradients, std::vector<int64_t>(key.begin(), key.end())};
    RegionBackward* const before = std::exchange(running, this);
    const absl::Cleanup restore = [before] { running = before; };
    RecordCall(&stack);
    return stack.back().toTensorVector();
  }

  // Notes whether it comes to be a call that can be replayed.
  void RecordCall(torch::jit::Stack* stack) const {
    SessionLock session;
    const bool followed = session->tape->following();
    const std::shared_ptr<const TracedCall> other = followed ? OtherCall(*session->tape) : nullptr;
    RunAndRecord(*region_gradient, stack);
    const Tape& now = *session->tape;
    if (now.number() != tape || now.following() != followed) return;
    if (other != nullptr && now.event() == other->end_event) {
      const std::vector<int64_t> key = other->args[1].value.toIntVector();
      std::copy(key.begin(), key.end(), joined->key.begin());
      return;
    }
    const auto& calls = now.recording().calls;
    const bool noted = !followed && !calls.empty() && calls.back()->op == region_gradient;
    if (!noted) ++failures->other_calls;
  }

  // The call that the tape's recording has at this place for the same result and the same numbers,
  // but other nodes; or null.
  std::shared_ptr<const TracedCall> OtherCall(const Tape& now) const {
    const auto& calls = now.lead().calls;
    for (size_t k = now.lead().FirstCallAt(now.event()); k < calls.size(); ++k) {
      if (calls[k]->first_event != now.event()) break;
      if (calls[k]->op != region_gradient) continue;
      const std::vector<int64_t> key = calls[k]->args[1].value.toIntVector();
      const std::array<int64_t, 5>& ours = joined->key;
      if (key[0] == ours[0] && key[3] == ours[3] && key[4] == ours[4]) return calls[k];
    }
    return nullptr;
  }
};

void HandleRegionGradient(SessionState& /*state*/, const OpInfo& op, torch::jit::Stack* stack) {
  const at::Tensor gradient = (*stack)[stack->size() - op.args.size()].toTensorVector()[0];
  torch::jit::drop(*stack, op.args.size());
  RegionBackward* const node = std::exchange(running, nullptr);
  autograd::variable_list results = node->RunInside(gradient);
  for (at::Tensor& result : results) {
    if (!result.defined() || !result.is_view()) continue;
    const at::AutoDispatchBelowADInplaceOrView below;
    result = at::alias(result);  // which does not keep the tensor that it is a view of
  }
  stack->emplace_back(std::move(results));
}

// The number of the value of the tape that the buffer holds; nullopt for another value.
std::optional<TapeId> PendingValue(const Tape& tape, const Buffer& buffer) {
  if (buffer.number() != kNoId) return buffer.number();
  const Value* const value = buffer.made();
  if (value == nullptr || value->tape != tape.number()) return std::nullopt;
  return value->id;
}

}  // namespace

RegionStart BeginRegion() {
  SessionLock lock;
  return {at::sequence_number::peek(), lock->tape->number(), lock->tape->scalars().size(),
          ops_under_hooks};
}

JoinedRegionPtr JoinNodes(const at::Tensor& result, const RegionStart& start,
                          const autograd::edge_list& arguments, const RegionFailuresPtr& failures) {
  if (result.grad_fn() == nullptr || !IsPlain(result) || start.ops_under_hooks != ops_under_hooks ||
      autograd::AnomalyMode::is_enabled()) {
    return nullptr;
  }
  const autograd::Edge root = compat::GradientEdge(result);
  Inside inside = Walk(start.first_node).From(root);
  if (!inside.replayable || inside.nodes.size() < 2 || inside.out.empty()) return nullptr;
  Hash128 structure = inside.structure;
  structure.Mix(at::globalContext().deterministicAlgorithms());
  SessionLock lock;
  const Tape& tape = *lock->tape;
  const std::optional<TapeId> value = PendingValue(tape, *BufferOf(result));
  if (tape.number() != start.tape || !value.has_value()) return nullptr;
  if (!failures->joins()) return nullptr;
  Hash128 numbers;
  for (size_t i = start.scalars; i < tape.scalars().size(); ++i) {
    MixIValue(numbers, c10::IValue(tape.scalars()[i]), /*value=*/true);
  }
  auto joined = std::make_shared<JoinedRegion>();
  bool leads_to_arguments = true;
  for (const autograd::Edge& edge : inside.out) {
    const auto it = std::find(arguments.begin(), arguments.end(), edge);
    leads_to_arguments &= it != arguments.end();
    joined->out.push_back(static_cast<int32_t>(it - arguments.begin()));
  }
  for (const autograd::Edge& edge : arguments) {
    const auto it = std::find(inside.out.begin(), inside.out.end(), edge);
    const bool leads = edge.is_valid() && it != inside.out.end();
    joined->edge.push_back(leads ? static_cast<int32_t>(it - inside.out.begin()) : -1);
  }
  const auto node = NewNode<RegionBackward>(std::move(inside.out));
  node->nodes = {root, std::move(inside.nodes)};
  node->tape = tape.number();
  joined->key[0] = *value;
  size_t next = 1;
  for (const uint64_t word : {structure.hi(), structure.lo(), numbers.hi(), numbers.lo()}) {
    joined->key[next++] = static_cast<int64_t>(word);
  }
  node->joined = joined;
  node->failures = failures;
  compat::SetGradientEdge(result, autograd::Edge(node, node->add_input_metadata(result)));
  return leads_to_arguments ? joined : nullptr;
}

bool LeadAlike(const JoinedRegion& joined, const autograd::edge_list& arguments) {
  for (size_t k = 0; k < arguments.size(); ++k) {
    const int32_t edge = joined.edge[k];
    if (edge >= 0 && !(arguments[k] == arguments[joined.out[edge]])) return false;
  }
  for (size_t i = 0; i < joined.out.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (arguments[joined.out[i]] == arguments[joined.out[j]]) return false;
    }
  }
  return true;
}

void JoinWithoutNodes(const at::Tensor& result, const JoinedRegionPtr& joined,
                      const autograd::edge_list& arguments, const RegionFailuresPtr& failures,
                      uint64_t tape, std::function<autograd::Edge()> make_inside) {
  autograd::edge_list edges;
  edges.reserve(joined->out.size());
  for (const int32_t k : joined->out) edges.push_back(arguments[k]);
  const auto node = NewNode<RegionBackward>(std::move(edges));
  node->make_inside = std::move(make_inside);
  node->tape = tape;
  node->joined = joined;
  node->failures = failures;
  compat::SetGradientEdge(result, autograd::Edge(node, node->add_input_metadata(result)));
}

void RegisterRegionGradient() {
  if (region_gradient != nullptr) return;
  region_gradient = DefineOp("spmd::_region_gradient",
                             "_region_gradient(Tensor[] gradients, int[] key) -> Tensor[]",
                             &HandleRegionGradient);
}

}  // namespace spmd::trace
