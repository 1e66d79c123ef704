// SPDX-License-Identifier: Apache-2.0
// Calls an op and gives the result the node that PyTorch's autograd kernel would give it.
#pragma once

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/trace/dispatch/unboxed_call.h"
#include "csrc/trace/pytorch/derivatives.h"

namespace spmd::trace {

namespace autograd = torch::autograd;

inline const autograd::AutogradMeta* MetaOf(const at::Tensor& t) {
  return static_cast<const autograd::AutogradMeta*>(t.unsafeGetTensorImpl()->autograd_meta());
}

// The edge along which the gradient of an argument goes.
inline autograd::Edge EdgeOf(const at::Tensor& t) {
  const autograd::AutogradMeta* const meta = MetaOf(t);
  if (meta == nullptr) return {};
  // For a view that was written, the gradient function must be determined again.
  if (meta->is_view_ || meta->grad_fn_ == nullptr) return autograd::impl::gradient_edge(t);
  return {meta->grad_fn_, meta->output_nr_};
}

template <typename... Args>
autograd::edge_list EdgesOf(const Args&... args) {
  autograd::edge_list edges;
  edges.reserve((size_t{kIsTensor<Args> || kIsOptionalTensor<Args>} + ...));
  const auto add = [&edges]<typename T>(const T& arg) {
    if constexpr (kIsTensor<T>) edges.push_back(EdgeOf(arg));
    if constexpr (kIsOptionalTensor<T>) {
      edges.push_back(arg.has_value() ? EdgeOf(*arg) : autograd::Edge());
    }
  };
  (add(args), ...);
  return edges;
}

template <typename Node>
auto NewNode(autograd::edge_list edges) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  return std::shared_ptr<Node>(new Node(std::move(edges)), autograd::deleteNode);
#else
  return c10::make_intrusive<Node>(std::move(edges));
#endif
}

// Lets the gradient of a new tensor, which is no view, go along the edge.
inline void SetEdge(const at::Tensor& result, autograd::Edge edge) {
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  impl->set_autograd_meta(
      std::make_unique<autograd::AutogradMeta>(impl, /*requires_grad=*/false, std::move(edge)));
}

// Does the same as autograd::set_history, without the checks that a new tensor does not need.
template <typename NodePtr>
void SetHistory(const at::Tensor& result, const NodePtr& node) {
  c10::TensorImpl* const impl = result.unsafeGetTensorImpl();
  if (!result.defined() || impl->autograd_meta() != nullptr ||
      !autograd::isDifferentiableType(result.scalar_type())) {
    return autograd::set_history(result, node);
  }
  const uint32_t number = node->add_input_metadata(result);
  SetEdge(result, autograd::Edge(node, number));
}

// The result that is differentiated: the first of several.
inline const at::Tensor& Differentiable(const at::Tensor& result) { return result; }
template <typename... Results>
const at::Tensor& Differentiable(const std::tuple<Results...>& results) {
  return std::get<0>(results);
}

template <typename Result, typename NodePtr>
struct CallAndNode {
  Result result;
  NodePtr node;
};

// As in PyTorch's kernel, the node is made before the op runs, and results are saved after it.
// `below(args...)` runs the op without autograd.
template <typename Op, typename Below, typename... Args>
auto CallWithNode(const Below& below, const Args&... args) {
  using D = Derivative<Op>;
  const auto node = NewNode<typename D::Node>(EdgesOf(args...));
  D::Save(*node, args...);
  auto result = below(args...);
  if constexpr (kIsTensorVector<decltype(result)>) {
    autograd::set_history(result, node);
  } else {
    const at::Tensor& made = Differentiable(result);
    SetHistory(made, node);
    if (!D::kComplex) {
      constexpr size_t kNamespace = sizeof("aten::") - 1;
      autograd::throw_error_for_complex_autograd(made, Op::name + kNamespace);
    }
  }
  if constexpr (requires { D::SaveResult(*node, result); }) D::SaveResult(*node, result);
  return CallAndNode<decltype(result), decltype(NewNode<typename D::Node>({}))>{std::move(result),
                                                                                node};
}

}  // namespace spmd::trace
