// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/node_chain.h"

#include <ATen/record_function.h>
#include <c10/core/DeviceType.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstdint>
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
using NodePtr = decltype(autograd::Edge::function);

// Nobody looks at the tasks of this pass, and it is the last one through its nodes.
bool MayChain() {
  const auto* const inputs = autograd::get_current_graph_task_exec_info();
  return inputs != nullptr && inputs->empty() && !autograd::get_current_graph_task_keep_graph() &&
         !autograd::AnomalyMode::is_enabled() && !at::hasCallbacks();
}

// Gives a node its edges back when the pass is over, however it ends.
class EdgesAfterPass {
 public:
  EdgesAfterPass(NodePtr node, autograd::edge_list edges)
      : node_(std::move(node)), edges_(std::move(edges)) {}
  ~EdgesAfterPass() { node_->next_edges() = std::move(edges_); }
  EdgesAfterPass(const EdgesAfterPass&) = delete;

 private:
  NodePtr node_;
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

// As the Itanium C++ ABI writes the namespace torch::autograd::generated.
bool IsFormula(const autograd::Node& node) {
  return absl::StartsWith(typeid(node).name(), "N5torch8autograd9generated");
}

bool HasHooks(autograd::Node& node) {
  const auto& after = node.post_hooks();
  const bool only_chain = after.size() == 1 && dynamic_cast<Chain*>(after[0].get()) != nullptr;
  return !(after.empty() || only_chain) || !node.pre_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         node.tensor_post_acc_grad_hooks() != nullptr;
}

bool IsLeaf(const autograd::Node& node) { return typeid(node) == typeid(autograd::AccumulateGrad); }

// A gradient on its way, and where to. The edge is that of a node that has run.
struct Open {
  const autograd::Edge* edge;
  at::Tensor grad;

  autograd::Node& node() const { return *edge->function; }
  // Nothing but the edge leads to the node, and nobody waits for its turn.
  bool IsAlone() const {
    return edge->function.use_count() == 1 && grad.defined() &&
           grad.device().type() == c10::DeviceType::PrivateUse1 && !HasHooks(node());
  }
  bool IsLeafToFill() const {
    return !static_cast<const autograd::AccumulateGrad&>(node()).variable.grad().defined() &&
           IsAlone();
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

// The nodes of a chain, as they run.
class Pass {
 public:
  // Takes what `node` made of its gradients, and gives leaves theirs.
  void Add(const autograd::Node& node, variable_list grads) {
    for (size_t k = 0; k < grads.size(); ++k) {
      const autograd::Edge& edge = node.next_edges()[k];
      if (!edge.is_valid()) continue;
      Open next{&edge, std::move(grads[k])};
      const bool is_leaf = IsLeaf(next.node());
      if (is_leaf && next.IsLeafToFill()) {
        std::move(next).Run();
      } else {
        ends_ = ends_ || is_leaf;  // the engine's turn: leaves come before all else
        open_.push_back(std::move(next));
      }
    }
    last_ = &node;
  }
  // Runs what stands right before the last node. False if that is the engine's.
  bool Go() {
    if (ends_) return false;
    const auto it = std::find_if(open_.begin(), open_.end(),
                                 [&](const Open& next) { return next.Follows(*last_); });
    if (it == open_.end()) return false;
    Open next = std::move(*it);
    open_.erase(it);
    autograd::Node& node = next.node();
    node.will_release_variables();
    variable_list grads = std::move(next).Run();
    autograd::validate_outputs(node.next_edges(), grads, [&](const std::string& error) {
      return "Function " + node.name() + " returned an " + error;
    });
    node.release_variables();
    Add(node, std::move(grads));
    return true;
  }
  std::vector<Open>& open() { return open_; }

 private:
  std::vector<Open> open_;
  const autograd::Node* last_ = nullptr;
  bool ends_ = false;
};

variable_list Chain::operator()(const variable_list& grads, const variable_list&) {
  if (first_.post_hooks().size() > 1 || !MayChain()) return grads;
  // Lets go of the tensors that hold the nodes which made them. The engine does it after its hooks.
  first_.release_variables();
  Pass pass;
  // A leaf takes over a gradient that nobody else holds: moved, the engine goes on with what is
  // returned.
  pass.Add(first_, std::move(const_cast<variable_list&>(grads)));
  constexpr int kLongest = 64;  // what is open is looked through for every node
  for (int k = 1; k < kLongest && pass.Go(); ++k) {
  }
  autograd::edge_list edges;
  variable_list left;
  for (Open& open : pass.open()) {
    edges.push_back(*open.edge);
    left.push_back(std::move(open.grad));
  }
  std::swap(first_.next_edges(), edges);
  const auto after = std::make_shared<EdgesAfterPass>(first_.getptr(), std::move(edges));
  autograd::Engine::get_default_engine().queue_callback([after] {});
  return left;
}

}  // namespace

void ChainFrom(autograd::Node& node) { node.add_post_hook(std::make_unique<Chain>(node)); }

}  // namespace spmd::trace
