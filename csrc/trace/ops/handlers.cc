// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/handlers.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>

#include <cstring>
#include <string>
#include <vector>

#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/shape/out_types.h"

namespace spmd::trace {

namespace {

// The overload that computes what `name` writes into out=: "aten::eye.m" for "aten::eye.m_out".
std::string WithoutOut(const std::string& name) {
  if (name == "aten::arange.start_out") return "aten::arange.start_step";
  if (name == "aten::range.out") return "aten::range.step";
  if (name == "aten::range.out_") return "aten::range";
  std::string plain = name.substr(0, name.size() - std::strlen("out"));
  plain.pop_back();  // '.' or '_'
  return plain;
}

// Pushes the arguments of `plain`. A factory makes a tensor of the type and on the device of `out`.
void PushArguments(const OpInfo& plain, const OpInfo& op, const Args& args, const at::Tensor& out,
                   torch::jit::Stack* stack) {
  for (const ArgInfo& info : plain.args) {
    if (const int k = op.FindArg(info.name); k >= 0) {
      stack->push_back(args[k]);
    } else if (info.name == "dtype") {
      stack->emplace_back(out.scalar_type());
    } else if (info.name == "device") {
      stack->emplace_back(out.device());
    } else {
      stack->emplace_back();
    }
  }
}

// Gives `out` the sizes of what a factory made, as PyTorch's kernels do: ranges fill any shape of
// so many elements.
void ResizeForFactory(SessionState& state, const std::string& name, const at::Tensor& out,
                      const at::Tensor& made) {
  const auto is = [&](const char* prefix) { return name.starts_with(prefix); };
  const bool counts = is("aten::arange") || is("aten::fft_");
  const bool is_range = counts || is("aten::range") || is("aten::linspace") || is("aten::logspace");
  if (is_range ? out.numel() == made.numel() : out.sizes() == made.sizes()) return;
  if (counts && out.numel() > 0) {
    TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ",
               out.numel(), " which does not match the computed number of elements ", made.numel(),
               ". Note that this may occur as a result of rounding error. The out tensor will be ",
               "resized to a tensor of shape (", made.numel(), ",).");
  }
  ResizeTensor(state, out, made.sizes());
}

}  // namespace

void RunIntoOut(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const OpInfo& plain = GetOp(WithoutOut(op.name));
  const bool is_factory = plain.FindArg("dtype") >= 0 && plain.FindArg("self") < 0;
  const Args args = PopArguments(op, stack);
  std::vector<at::Tensor> out;
  for (const int k : op.result_alias) out.push_back(args[k].toTensor());
  PushArguments(plain, op, args, out[0], stack);
  if (plain.handler != nullptr) {
    plain.handler(state, plain, stack);
  } else {
    plain.handle.callBoxed(stack);
  }
  const std::vector<c10::IValue> results = torch::jit::pop(*stack, out.size());
  bool same_types = true;
  std::vector<TensorMeta> metas;
  for (size_t k = 0; k < out.size(); ++k) {
    metas.push_back(TensorMeta::Of(results[k].toTensor()));
    same_types = same_types && metas.back().dtype == out[k].scalar_type();
  }
  if (!same_types && !TakesOutTypes(op, args, metas)) {
    stack->insert(stack->end(), args.begin(), args.end());
    RunOnHost(state, op, stack);  // raises the error
    return;
  }
  for (size_t k = 0; k < out.size(); ++k) {
    const at::Tensor result = results[k].toTensor();
    if (is_factory) {
      ResizeForFactory(state, op.name, out[k], result);
    } else {
      at::native::resize_output(out[k], result.sizes());
    }
    out[k].copy_(result.view(out[k].sizes()));
    stack->push_back(out[k]);
  }
}

void FillIfDeterministic(at::Tensor& unwritten) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicFillUninitializedMemory()) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  at::native::fill_empty_deterministic_(unwritten);
}

}  // namespace spmd::trace
