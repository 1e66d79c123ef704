// SPDX-License-Identifier: Apache-2.0
// New nodes of autograd, which versions of PyTorch own in different ways:
//
//   const auto node = NewNode<MyBackward>(autograd::collect_next_edges(x));
//   autograd::set_history(result, node);
//   ShowNode(node);
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace spmd::trace {

namespace autograd = torch::autograd;

template <typename Node>
auto NewNode(autograd::edge_list edges) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>(std::move(edges));
  } else {
    // Looked up by an argument that depends on Node, since not all versions have the function.
    return std::shared_ptr<Node>(new Node(std::move(edges)), [](Node* made) { deleteNode(made); });
  }
}

// Calls the hooks that see new nodes (torch.autograd.graph.node_creation_hook), where PyTorch has
// them. To be called once results lead to the node, as PyTorch does for its own.
template <typename NodePtr>
void ShowNode(const NodePtr& node) {
  if constexpr (requires { fire_node_creation_hooks(node); }) fire_node_creation_hooks(node);
}

}  // namespace spmd::trace
