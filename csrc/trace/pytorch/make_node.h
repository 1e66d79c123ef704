// SPDX-License-Identifier: Apache-2.0
// A new node of autograd, which versions of PyTorch own in different ways.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <utility>

namespace spmd::trace {

namespace autograd = torch::autograd;

template <typename Node>
auto NewNode(autograd::edge_list edges) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return std::shared_ptr<Node>(new Node(std::move(edges)), autograd::deleteNode);
#else
  return c10::make_intrusive<Node>(std::move(edges));
#endif
}

}  // namespace spmd::trace
