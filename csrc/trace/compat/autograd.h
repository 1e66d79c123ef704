// SPDX-License-Identifier: Apache-2.0
// Nodes of autograd, and what tensors have of it (see csrc/trace/compat/keys.h).
#pragma once

#include <ATen/core/Tensor.h>
#if __has_include(<ATen/NodeCreationHooks.h>)
#include <ATen/NodeCreationHooks.h>
#endif
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>

namespace spmd::compat {

// Where the gradient of `t` goes. Instead: Tensor::grad_fn and output_nr, which leaves lack.
// Without: regions are differentiated node by node.
inline torch::autograd::Edge GradientEdge(const at::Tensor& t) {
  return torch::autograd::impl::gradient_edge(t);
}

// One node in the place of those of a region. Instead: torch::autograd::Function. Without: as
// above.
inline void SetGradientEdge(const at::Tensor& t, torch::autograd::Edge edge) {
  torch::autograd::impl::set_gradient_edge(t, std::move(edge));
}

// A node with the inputs of others. Instead: Node::add_input_metadata, whose parameters change from
// version to version. Without: as above.
class NodeLikeOthers : public torch::autograd::Node {
 protected:
  using Node::Node;
  void TakeInputOf(const torch::autograd::Edge& edge) {
    input_metadata_.push_back(edge.function->input_metadata(edge.input_nr));
  }
};

// Whether PyTorch generated the node from its table of derivatives, by its mangled name. Instead:
// Node::is_traceable, which views deny. Without: as above.
inline bool IsGenerated(const torch::autograd::Node& node) {
  constexpr std::string_view kNamespace = "N5torch8autograd9generated";
  return std::string_view(typeid(node).name()).starts_with(kNamespace);
}

// Whether a tensor has a history or hooks, or is a leaf with a gradient. Instead: requires_grad and
// grad_fn, which do not tell of hooks. Without: functions of regions do not run on shards.
inline bool IsTouched(const at::Tensor& t) {
  const auto* const meta =
      static_cast<const torch::autograd::AutogradMeta*>(t.unsafeGetTensorImpl()->autograd_meta());
  return meta != nullptr && (meta->requires_grad_ || meta->grad_fn_ != nullptr ||
                             !meta->hooks_.empty() || meta->fw_grad_ != nullptr);
}

// Counts a write of `t`, for tensors that autograd has saved. Instead: an autograd kernel of the
// op. Without: writes of lists of tensors are not seen.
inline void CountWrite(const at::Tensor& t) { torch::autograd::impl::bump_version(t); }

// Whether the backward pass of this thread is one of torch.autograd.grad. Instead: none. Without:
// such passes count as those of micro-steps.
inline bool CapturesGradients() {
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes != nullptr && std::any_of(nodes->begin(), nodes->end(), [](const auto& node) {
           return node.second.captures_ != nullptr;
         });
}

// Whether hooks see new nodes (torch.autograd.graph.node_creation_hook, of PyTorch 2.14). Instead:
// none. Without: the hooks do not see the nodes that a region leaves out.
inline bool HooksSeeNodes() {
#if __has_include(<ATen/NodeCreationHooks.h>)
  return !at::impl::NodeCreationHooks::empty();
#else
  return false;
#endif
}

}  // namespace spmd::compat
