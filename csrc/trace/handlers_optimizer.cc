// SPDX-License-Identifier: Apache-2.0
// Fused optimizers, written in the element-wise ops that they fuse.
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include "csrc/trace/arguments.h"
#include "csrc/trace/kernel.h"
#include "csrc/trace/tensor.h"

namespace spmd::trace {

namespace {

// Arguments by name, and the two that GradScaler passes.
struct Fused {
  const OpInfo& op;
  const Args& args;
  double number(const char* name) const { return args[op.FindArg(name)].toDouble(); }
  bool flag(const char* name) const { return args[op.FindArg(name)].toBool(); }
  std::vector<at::Tensor> list(const char* name) const {
    return args[op.FindArg(name)].toTensorVector();
  }
  at::Tensor tensor(const char* name) const {
    const c10::IValue& v = args[op.FindArg(name)];
    return v.isTensor() ? v.toTensor() : at::Tensor();
  }
  // The learning rate as a factor: a number, or a 0-dim tensor.
  at::Tensor TimesRate(const at::Tensor& x) const {
    const c10::IValue& lr = args[op.FindArg("lr")];
    return lr.isTensor() ? at::mul(x, lr.toTensor()) : at::mul(x, lr.toDouble());
  }
  // The gradient is left unscaled, as the fused kernels leave it.
  at::Tensor Gradient(const at::Tensor& grad) const {
    at::Tensor g = grad;
    if (const at::Tensor scale = tensor("grad_scale"); scale.defined()) {
      g = at::div(g, scale);
      Store(grad, g);
    }
    return flag("maximize") ? at::neg(g) : g;
  }
  // Keeps the old value where a gradient was infinite.
  void Store(const at::Tensor& target, const at::Tensor& value) const {
    const at::Tensor found = tensor("found_inf");
    target.copy_(found.defined() ? at::where(found.ne(0), target, value) : value);
  }
};

// 1 - beta^step, in double precision as the fused kernels have it: 0.999^step is close to 1.
at::Tensor BiasCorrection(double beta, const at::Tensor& step, at::ScalarType dtype) {
  return at::rsub(at::pow(beta, step.to(at::kDouble)), 1).to(at::toOpMathType(dtype));
}

void Adam(const OpInfo& op, const Args& args, bool decoupled) {
  const Fused f{op, args};
  const auto params = f.list("self"), grads = f.list("grads"), means = f.list("exp_avgs"),
             squares = f.list("exp_avg_sqs"), maxima = f.list("max_exp_avg_sqs"),
             steps = f.list("state_steps");
  const double beta1 = f.number("beta1"), beta2 = f.number("beta2"), eps = f.number("eps"),
               decay = f.number("weight_decay");
  for (size_t k = 0; k < params.size(); ++k) {
    at::Tensor p = params[k];
    at::Tensor g = f.Gradient(grads[k]);
    if (decay != 0) {
      if (decoupled) {
        p = at::sub(p, f.TimesRate(at::mul(p, decay)));
      } else {
        g = at::add(g, at::mul(p, decay));
      }
    }
    const at::Tensor mean = at::add(at::mul(means[k], beta1), at::mul(g, 1 - beta1));
    const at::Tensor square =
        at::add(at::mul(squares[k], beta2), at::mul(at::mul(g, g), 1 - beta2));
    at::Tensor second = square;
    if (f.flag("amsgrad")) {
      second = at::maximum(maxima[k], square);
      f.Store(maxima[k], second);
    }
    const at::Tensor bias1 = BiasCorrection(beta1, steps[k], p.scalar_type());
    const at::Tensor bias2 = BiasCorrection(beta2, steps[k], p.scalar_type());
    const at::Tensor denominator = at::add(at::div(at::sqrt(second), at::sqrt(bias2)), eps);
    const at::Tensor update = at::div(f.TimesRate(mean), at::mul(denominator, bias1));
    f.Store(params[k], at::sub(p, update));
    f.Store(means[k], mean);
    f.Store(squares[k], square);
  }
}

void FusedAdam(const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args args = PopArguments(op, stack);
  Adam(op, args, op.name.find("adamw") != std::string::npos);
}

void FusedSgd(const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args args = PopArguments(op, stack);
  const Fused f{op, args};
  const auto params = f.list("self"), grads = f.list("grads"),
             buffers = f.list("momentum_buffer_list");
  const double decay = f.number("weight_decay"), momentum = f.number("momentum"),
               dampening = f.number("dampening");
  for (size_t k = 0; k < params.size(); ++k) {
    at::Tensor g = f.Gradient(grads[k]);
    if (decay != 0) g = at::add(g, at::mul(params[k], decay));
    if (momentum != 0) {
      const at::Tensor buffer = f.flag("is_first_step") ? g
                                                        : at::add(at::mul(buffers[k], momentum),
                                                                  at::mul(g, 1 - dampening));
      f.Store(buffers[k], buffer);
      g = f.flag("nesterov") ? at::add(g, at::mul(buffer, momentum)) : buffer;
    }
    f.Store(params[k], at::sub(params[k], f.TimesRate(g)));
  }
}

constexpr HandlerRow kRows[] = {
    {"aten::_fused_adam_", &FusedAdam},  {"aten::_fused_adam_.tensor_lr", &FusedAdam},
    {"aten::_fused_adamw_", &FusedAdam}, {"aten::_fused_adamw_.tensor_lr", &FusedAdam},
    {"aten::_fused_sgd_", &FusedSgd},    {"aten::_fused_sgd_.tensor_lr", &FusedSgd},
};

}  // namespace

absl::Span<const HandlerRow> OptimizerHandlers() { return kRows; }

}  // namespace spmd::trace
