// SPDX-License-Identifier: Apache-2.0
// Kernels above autograd, for what PyTorch's own formulas do not cover once a private device keeps
// an op whole.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/matmul.h>

#include <utility>

#include "csrc/trace/kernel.h"

namespace spmd::trace {

namespace {

constexpr auto kAutogradKey = c10::DispatchKey::AutogradPrivateUse1;

// linear has no forward-mode formula, and its backward speaks of real matrices only. Where an
// operand carries a tangent or is complex, or the weight is a vector, it is the product that it
// stands for.
class LinearKernel final : public c10::OperatorKernel {
 public:
  explicit LinearKernel(c10::SafeKernelFunction whole) : whole_(std::move(whole)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto tensor = [&](size_t from_top) {
      const c10::IValue& v = (*stack)[stack->size() - from_top];
      return v.isTensor() ? v.toTensor() : at::Tensor();
    };
    const at::Tensor input = tensor(3), weight = tensor(2), bias = tensor(1);
    const auto has_tangent = [](const at::Tensor& t) {
      return t.defined() && t._fw_grad(/*level=*/0).defined();
    };
    if (weight.dim() == 2 && !weight.is_complex() && !has_tangent(input) && !has_tangent(weight) &&
        !has_tangent(bias)) {
      whole_.callBoxed(op, keys, stack);
      return;
    }
    torch::jit::drop(*stack, 3);
    const at::Tensor product = at::matmul(input, weight.dim() == 2 ? weight.t() : weight);
    stack->push_back(bias.defined() ? at::add(product, bias) : product);
  }

 private:
  c10::SafeKernelFunction whole_;
};

}  // namespace

std::vector<c10::RegistrationHandleRAII> RegisterAutogradKernels() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const c10::OperatorName name("aten::linear", "");
  const c10::OperatorHandle linear = dispatcher.findSchemaOrThrow("aten::linear", "");
  std::vector<c10::RegistrationHandleRAII> handles;
  handles.push_back(dispatcher.registerImpl(
      name, kAutogradKey,
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<LinearKernel>(linear.getComputedKernelForDispatchKey(kAutogradKey))),
      std::nullopt, nullptr, "torch_spmd"));
  return handles;
}

}  // namespace spmd::trace
