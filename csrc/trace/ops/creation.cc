// SPDX-License-Identifier: Apache-2.0
// Factories and fills.
#include <ATen/core/LegacyTypeDispatch.h>

#include <string>

#include "csrc/trace/device/device_type.h"
#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/dispatch/run_elsewhere.h"
#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

void CheckPlace(const OpInfo& op, const Args& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind != ArgKind::kDropped || args[i].isNone()) continue;
    if (op.args[i].name == "layout") {
      TORCH_CHECK_NOT_IMPLEMENTED(static_cast<c10::Layout>(args[i].toInt()) == at::kStrided,
                                  "torch_spmd: ", static_cast<c10::Layout>(args[i].toInt()),
                                  " tensors are not supported on '", TheDevice(), "'");
    }
  }
}

// The metadata that PyTorch gives the op's result. If it refuses, the arguments stay on the stack.
TensorMeta MetaOf(SessionState& state, const OpInfo& op, const Args& args) {
  CheckPlace(op, args);
  const Inference& inferred = state.shapes.Infer(op, args);
  TORCH_CHECK(inferred.ok, op.name, ": invalid arguments");
  return inferred.tensors[0];
}

// For `like` ops with another device as argument, and for arguments that Meta rejects: PyTorch's
// own kernel on the host computes the result, or raises the error.
bool GoesElsewhere(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  if (RunElsewhere(state, op, args, stack)) return true;
  CheckPlace(op, args);
  if (state.shapes.Infer(op, args).ok) return false;
  RunOnHost(state, op, stack);
  return true;
}

void Empty(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  if (GoesElsewhere(state, op, stack)) return;
  const TensorMeta meta = MetaOf(state, op, PopArguments(op, stack));
  at::Tensor made = NewTensor(meta, nullptr);
  FillIfDeterministic(made);
  stack->push_back(std::move(made));
}

c10::Scalar FillOf(const OpInfo& op, const Args& args) {
  const std::string& base = op.handle.operator_name().name;
  for (const char* name : {"fill_value", "s"}) {
    if (const int i = op.FindArg(name); i >= 0) return args[i].toScalar();
  }
  return base.find("ones") != std::string::npos ? c10::Scalar(1) : c10::Scalar(0);
}

void Filled(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  if (GoesElsewhere(state, op, stack)) return;
  const Args args = PopArguments(op, stack);
  const TensorMeta meta = MetaOf(state, op, args);
  stack->push_back(NewTensor(state, meta, EmitFull(state, TypeOf(meta), FillOf(op, args))));
}

void Arange(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  if (GoesElsewhere(state, op, stack)) return;
  const Args args = PopArguments(op, stack);
  const TensorMeta meta = MetaOf(state, op, args);
  // For an integer type the numbers become integers before anything is added.
  const bool integral = c10::isIntegralType(meta.dtype, /*includeBool=*/true);
  const auto number = [&](const char* name, int64_t fallback) -> c10::IValue {
    const int i = op.FindArg(name);
    if (i < 0) return fallback;
    return integral ? c10::IValue(args[i].toScalar().to<int64_t>()) : args[i];
  };
  const TapeId id = EmitNamed(state, "spmd::iota", {},
                              {{"size", meta.sizes[0]},
                               {"start", number("start", 0)},
                               {"step", number("step", 1)},
                               {"offset", int64_t{0}},
                               {"dtype", static_cast<int64_t>(meta.dtype)}},
                              TypeOf(meta));
  stack->push_back(NewTensor(state, meta, id));
}

// eye, linspace, windows and the like are recorded as they are.
void Table(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  if (GoesElsewhere(state, op, stack)) return;
  Args args = PopArguments(op, stack);
  const TensorMeta meta = MetaOf(state, op, args);
  // The type is recorded, since the default type may differ when the program runs.
  args[op.FindArg("dtype")] = static_cast<int64_t>(meta.dtype);
  stack->push_back(NewTensor(state, meta, Emit(state, op, std::move(args), {}, {TypeOf(meta)})));
}

// linspace and logspace between tensors. Numbers on the host are read, as PyTorch does.
void RangeBetweenTensors(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  for (const c10::IValue& arg : PeekArguments(op, stack)) {
    if (arg.isTensor() && Buffer::IsOurs(arg.toTensor())) return RunGeneric(state, op, stack);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CompositeExplicitAutograd),
                            stack);
}

void Fill(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const TensorType type = TypeOf(self);
  if (a.size() > 1 && a[1].isTensor()) {
    TORCH_CHECK(a[1].toTensor().dim() == 0,
                "fill_ only supports 0-dimension value tensor but got tensor with ",
                a[1].toTensor().dim(), " dimensions.");
    const TapeId value = EmitCast(state, ReadOperand(state, a[1].toTensor()), type.dtype);
    Write(state, self, EmitExpand(state, value, type.dims), Overlap::kAllowed);
  } else {
    const c10::Scalar value = a.size() > 1 ? a[1].toScalar() : c10::Scalar(0);
    Write(state, self, EmitFull(state, type, value), Overlap::kAllowed);
  }
  stack->push_back(self);
}

constexpr HandlerRow kCreationHandlers[] = {
    {"aten::_efficientzerotensor", &Filled},
    {"aten::arange", &Arange},
    {"aten::arange.out", &RunIntoOut},
    {"aten::arange.start", &Arange},
    {"aten::arange.start_out", &RunIntoOut},
    {"aten::arange.start_step", &Arange},
    {"aten::bartlett_window", &Table},
    {"aten::bartlett_window.out", &RunIntoOut},
    {"aten::bartlett_window.periodic", &Table},
    {"aten::bartlett_window.periodic_out", &RunIntoOut},
    {"aten::blackman_window", &Table},
    {"aten::blackman_window.out", &RunIntoOut},
    {"aten::blackman_window.periodic", &Table},
    {"aten::blackman_window.periodic_out", &RunIntoOut},
    {"aten::empty.memory_format", &Empty},
    {"aten::empty_like", &Empty},
    {"aten::empty_permuted", &Empty},
    {"aten::empty_strided", &Empty},
    {"aten::eye", &Table},
    {"aten::eye.m", &Table},
    {"aten::eye.m_out", &RunIntoOut},
    {"aten::eye.out", &RunIntoOut},
    {"aten::fft_fftfreq", &Table},
    {"aten::fft_fftfreq.out", &RunIntoOut},
    {"aten::fft_rfftfreq", &Table},
    {"aten::fft_rfftfreq.out", &RunIntoOut},
    {"aten::fill_.Scalar", &Fill},
    {"aten::fill_.Tensor", &Fill},
    {"aten::full", &Filled},
    {"aten::full.out", &RunIntoOut},
    {"aten::full_like", &Filled},
    {"aten::hamming_window", &Table},
    {"aten::hamming_window.out", &RunIntoOut},
    {"aten::hamming_window.periodic", &Table},
    {"aten::hamming_window.periodic_alpha", &Table},
    {"aten::hamming_window.periodic_alpha_beta", &Table},
    {"aten::hamming_window.periodic_alpha_beta_out", &RunIntoOut},
    {"aten::hamming_window.periodic_alpha_out", &RunIntoOut},
    {"aten::hamming_window.periodic_out", &RunIntoOut},
    {"aten::hann_window", &Table},
    {"aten::hann_window.out", &RunIntoOut},
    {"aten::hann_window.periodic", &Table},
    {"aten::hann_window.periodic_out", &RunIntoOut},
    {"aten::kaiser_window", &Table},
    {"aten::kaiser_window.beta", &Table},
    {"aten::kaiser_window.beta_out", &RunIntoOut},
    {"aten::kaiser_window.out", &RunIntoOut},
    {"aten::kaiser_window.periodic", &Table},
    {"aten::kaiser_window.periodic_out", &RunIntoOut},
    {"aten::linspace", &Table},
    {"aten::linspace.Scalar_Tensor", &RangeBetweenTensors},
    {"aten::linspace.Scalar_Tensor_out", &RunIntoOut},
    {"aten::linspace.Tensor_Scalar", &RangeBetweenTensors},
    {"aten::linspace.Tensor_Scalar_out", &RunIntoOut},
    {"aten::linspace.Tensor_Tensor", &RangeBetweenTensors},
    {"aten::linspace.Tensor_Tensor_out", &RunIntoOut},
    {"aten::linspace.out", &RunIntoOut},
    {"aten::logspace", &Table},
    {"aten::logspace.Scalar_Tensor", &RangeBetweenTensors},
    {"aten::logspace.Scalar_Tensor_out", &RunIntoOut},
    {"aten::logspace.Tensor_Scalar", &RangeBetweenTensors},
    {"aten::logspace.Tensor_Scalar_out", &RunIntoOut},
    {"aten::logspace.Tensor_Tensor", &RangeBetweenTensors},
    {"aten::logspace.Tensor_Tensor_out", &RunIntoOut},
    {"aten::logspace.out", &RunIntoOut},
    {"aten::new_empty", &Empty},
    {"aten::new_empty_strided", &Empty},
    {"aten::new_full", &Filled},
    {"aten::new_ones", &Filled},
    {"aten::new_zeros", &Filled},
    {"aten::normal.float_float_out", &RunIntoOut},
    {"aten::ones", &Filled},
    {"aten::ones.out", &RunIntoOut},
    {"aten::ones_like", &Filled},
    {"aten::rand.generator_out", &RunIntoOut},
    {"aten::rand.out", &RunIntoOut},
    {"aten::randint.generator_out", &RunIntoOut},
    {"aten::randint.low_generator_out", &RunIntoOut},
    {"aten::randint.low_out", &RunIntoOut},
    {"aten::randint.out", &RunIntoOut},
    {"aten::range", &Arange},
    {"aten::range.out", &RunIntoOut},
    {"aten::range.out_", &RunIntoOut},
    {"aten::range.step", &Arange},
    {"aten::scalar_tensor", &Filled},
    {"aten::scalar_tensor.out", &RunIntoOut},
    {"aten::tril_indices", &Table},
    {"aten::tril_indices.out", &RunIntoOut},
    {"aten::triu_indices", &Table},
    {"aten::triu_indices.out", &RunIntoOut},
    {"aten::zero_", &Fill},
    {"aten::zeros", &Filled},
    {"aten::zeros.out", &RunIntoOut},
    {"aten::zeros_like", &Filled},
};
static_assert(IsSortedAndUnique(kCreationHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> CreationHandlers() { return kCreationHandlers; }

}  // namespace spmd::trace
