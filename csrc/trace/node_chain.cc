// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/node_chain.h"

#include <ATen/record_function.h>
#include <c10/core/DeviceType.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "csrc/util/pool.h"

namespace spmd::trace {

namespace {

namespace autograd = torch::autograd;
using autograd::variable_list;

// The number of living threads that have used the device.
std::atomic<int> g_threads{0};
struct DeviceThread {
  DeviceThread() { ++g_threads; }
  ~DeviceThread() { --g_threads; }
};

// The node of a chain that runs, and the node in whose task it runs.
struct Running {
  const autograd::Node* task = nullptr;
  const autograd::Node* node = nullptr;
};
thread_local Running t_running;

// True if nothing observes the tasks of this pass, the pass is the last one through its nodes, and
// no other thread goes through them meanwhile.
bool MayChain() {
  const auto* const inputs = autograd::get_current_graph_task_exec_info();
  return g_threads == 1 && inputs != nullptr && inputs->empty() &&
         !autograd::get_current_graph_task_keep_graph() && !autograd::AnomalyMode::is_enabled() &&
         !at::hasCallbacks();
}

// Keeps the edges of a node while the node shows others, and restores them at its end. It is the
// last of the node's gradients, where the engine has no use for it, and so it ends with them:
// before the engine takes its next task, and on failure.
class EdgesKept final : public c10::TensorImpl {
 public:
  EdgesKept(autograd::Node& node, autograd::edge_list shown)
      : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(),
                   c10::Device(c10::kCPU)),
        node_(node),
        edges_(std::move(shown)) {
    std::swap(node_.next_edges(), edges_);
  }
  ~EdgesKept() override { std::swap(node_.next_edges(), edges_); }

 private:
  autograd::Node& node_;  // the engine holds it that long
  autograd::edge_list edges_;
};

class Chain final : public autograd::FunctionPostHook, public Pooled<Chain> {
 public:
  explicit Chain(autograd::Node& first) : first_(first) {}

  variable_list operator()(const variable_list& grads, const variable_list&) override;
  // Compiled graphs apply formulas without the engine.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  autograd::Node& first_;  // owns the hook
};

// True for nodes in the namespace torch::autograd::generated, by its name in the Itanium C++ ABI.
bool IsFormula(const autograd::Node& node) {
  return absl::StartsWith(typeid(node).name(), "N5torch8autograd9generated");
}

bool HasHooks(autograd::Node& node) {
  const auto& after = node.post_hooks();
  const bool only_chain = after.size() == 1 && typeid(*after[0]) == typeid(Chain);
  return !(after.empty() || only_chain) || !node.pre_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         node.tensor_post_acc_grad_hooks() != nullptr;
}

bool IsLeaf(const autograd::Node& node) { return typeid(node) == typeid(autograd::AccumulateGrad); }

// A gradient and its destination, the edge of a node that has run.
struct Open {
  const autograd::Edge* edge;
  at::Tensor grad;

  autograd::Node& node() const { return *edge->function; }
  // True if only the edge leads to the node, and nothing waits for its turn.
  bool IsAlone() const {
    return edge->function.use_count() == 1 && grad.defined() &&
           grad.device().type() == c10::DeviceType::PrivateUse1 && !HasHooks(node());
  }
  // True if the leaf's gradient can be set here. Requires: the node is a leaf's.
  bool IsLeafToFill() const {
    if (!IsAlone()) return false;
    const auto& leaf = static_cast<const autograd::AccumulateGrad&>(node());
    return !autograd::impl::get_autograd_meta(leaf.variable)->grad_.defined();
  }
  bool Follows(const autograd::Node& last) const {
    return node().sequence_nr() + 1 == last.sequence_nr() && node().num_inputs() == 1 &&
           IsFormula(node()) && IsAlone();
  }
  variable_list Run() && {
    variable_list grads;
    grads.push_back(std::move(grad));
    return node()(std::move(grads));
  }
};

// Runs the nodes of a chain after the first.
class ChainRun {
 public:
  explicit ChainRun(const autograd::Node& first)
      : last_(&first), outer_(std::exchange(t_running, Running{&first, &first})) {}
  ~ChainRun() { t_running = outer_; }
  ChainRun(const ChainRun&) = delete;

  // Takes the gradients from the last node, and sets those of leaves: all or none, since the engine
  // has its own order for leaves.
  void Add(variable_list grads) {
    const size_t before = open_.size();
    bool fills = true;
    for (size_t k = 0; k < grads.size(); ++k) {
      const autograd::Edge& edge = last_->next_edges()[k];
      if (!edge.is_valid()) continue;
      open_.push_back({&edge, std::move(grads[k])});
      if (IsLeaf(*edge.function)) fills = fills && open_.back().IsLeafToFill();
    }
    ends_ = !fills;  // leaves come before everything else
    if (ends_) return;
    for (size_t k = before; k < open_.size(); ++k) {
      if (IsLeaf(open_[k].node())) std::move(open_[k]).Run();
    }
    const auto is_filled = [](const Open& next) { return IsLeaf(next.node()); };
    open_.erase(std::remove_if(open_.begin() + before, open_.end(), is_filled), open_.end());
  }
  // Runs the node right before the last one. False if the engine must run it.
  bool Go() {
    if (ends_) return false;
    const auto it = std::find_if(open_.begin(), open_.end(),
                                 [&](const Open& next) { return next.Follows(*last_); });
    if (it == open_.end()) return false;
    Open next = std::move(*it);
    open_.erase(it);
    autograd::Node& node = next.node();
    t_running.node = &node;
    node.will_release_variables();
    variable_list grads = std::move(next).Run();
    autograd::validate_outputs(node.next_edges(), grads, [&](const std::string& error) {
      return "Function " + node.name() + " returned an " + error;
    });
    node.release_variables();
    last_ = &node;
    Add(std::move(grads));
    return true;
  }
  std::vector<Open>& open() { return open_; }

 private:
  std::vector<Open> open_;
  const autograd::Node* last_;
  bool ends_ = false;
  const Running outer_;  // a node may ask for a pass of its own
};

variable_list Chain::operator()(const variable_list& grads, const variable_list&) {
  if (first_.post_hooks().size() > 1 || !MayChain()) return grads;
  // Releases the tensors that hold the nodes which made them. The engine does so only after its
  // hooks.
  first_.release_variables();
  ChainRun run(first_);
  // A leaf takes over a gradient that nothing else holds. It is moved, since the engine continues
  // with what is returned.
  run.Add(std::move(const_cast<variable_list&>(grads)));
  constexpr int kLongest = 64;  // every node searches what is open
  for (int k = 1; k < kLongest && run.Go(); ++k) {
  }
  autograd::edge_list edges;
  variable_list left;
  for (Open& open : run.open()) {
    edges.push_back(*open.edge);
    left.push_back(std::move(open.grad));
  }
  edges.emplace_back();
  left.push_back(at::detail::make_tensor<EdgesKept>(first_, std::move(edges)));
  return left;
}

}  // namespace

void NoteThread() {
  static thread_local const DeviceThread thread;
  static_cast<void>(&thread);
}

const autograd::Node* RunningNode() {
  const autograd::Node* const task = autograd::get_current_node().get();
  return task == t_running.task ? t_running.node : task;
}

void ChainFrom(autograd::Node& node) { node.add_post_hook(std::make_unique<Chain>(node)); }

}  // namespace spmd::trace
