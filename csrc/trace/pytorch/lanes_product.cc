// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/lanes_product.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/bmm.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <mutex>
#include <string>
#include <utility>

#include "csrc/trace/pytorch/make_node.h"

namespace spmd::trace {

namespace {

at::Tensor ForEachLane(const at::Tensor& matrix, int64_t lanes) {
  return matrix.expand({lanes, matrix.size(0), matrix.size(1)});
}

// Transposed, and conjugate if it is complex.
at::Tensor Adjoint(const at::Tensor& lanes) {
  const at::Tensor transposed = lanes.transpose(1, 2);
  return transposed.is_complex() ? transposed.conj() : transposed;
}

struct LanesProductBackward final : autograd::TraceableFunction {
  explicit LanesProductBackward(autograd::edge_list edges) : TraceableFunction(std::move(edges)) {}

  std::string name() const override { return "LanesProductBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex);
    const at::Tensor& gradient = gradients[0];
    autograd::variable_list results(2);
    if (!gradient.defined()) return results;
    if (task_should_compute_output(0)) {
      results[0] = at::bmm(gradient, Adjoint(lanes.unpack())).sum(0);
    }
    if (task_should_compute_output(1)) {
      results[1] = at::bmm(Adjoint(ForEachLane(matrix.unpack(), gradient.size(0))), gradient);
    }
    return results;
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex);
    matrix.reset_data();
    lanes.reset_data();
  }

  autograd::SavedVariable matrix, lanes;  // as far as a gradient needs them
  std::mutex mutex;                       // of these
};

}  // namespace

at::Tensor LanesProduct(const at::Tensor& matrix, const at::Tensor& lanes) {
  const bool gradient = c10::AutogradState::get_tls_state().get_grad_mode() &&
                        (matrix.requires_grad() || lanes.requires_grad());
  decltype(NewNode<LanesProductBackward>({})) node;
  if (gradient) {
    node = NewNode<LanesProductBackward>(autograd::collect_next_edges(matrix, lanes));
    if (node->should_compute_output(0)) node->lanes = {lanes, /*is_output=*/false};
    if (node->should_compute_output(1)) node->matrix = {matrix, /*is_output=*/false};
  }
  at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::bmm(ForEachLane(matrix, lanes.size(0)), lanes);
  }();
  if (gradient) {
    autograd::set_history(result, node);
    ShowNode(node);
  }
  return result;
}

}  // namespace spmd::trace
