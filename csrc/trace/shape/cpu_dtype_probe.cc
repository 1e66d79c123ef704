// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/cpu_dtype_probe.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/one_place/workers.h"
#include "csrc/trace/device/place.h"
#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {

namespace {

// A try must cost less than inferring shapes, so dimensions of larger tensors are shortened to
// kShort.
constexpr int64_t kElements = 4096;
constexpr int64_t kShort = 4;

// What kernels say about types that they do not support, or not together ("same dtype", "expected
// scalar type").
constexpr std::array<std::string_view, 7> kRefusals = {"does not support",
                                                       "not implemented for",
                                                       "not yet implemented",
                                                       "not supported",
                                                       "type",
                                                       "not intended to support",
                                                       "boolean"};

// Ops whose kernels divide by zero or read out of bounds if there are no elements.
constexpr std::array<std::string_view, 4> kUndefinedOnNothing = {"batch_norm", "margin_loss",
                                                                 "pdist", "segment_reduce"};

// Ops whose kernels write where their integers say, unchecked. Zeros are no pivots.
constexpr std::array<std::string_view, 3> kUndefinedOnZeros = {"::lu_", "_lu_solve", "ldl_"};

bool Says(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// True for numbers and 0-dim CPU tensors, which combine with tensors of any device.
bool IsNumber(const at::Tensor& t) { return t.device().is_cpu() && t.dim() == 0; }

std::vector<at::Tensor> TensorsOf(const std::vector<c10::IValue>& args) {
  std::vector<at::Tensor> tensors;
  const auto add = [&](const c10::IValue& v) {
    if (v.isTensor() && v.toTensor().defined() && !IsNumber(v.toTensor())) {
      tensors.push_back(v.toTensor());
    }
  };
  for (const c10::IValue& arg : args) {
    add(arg);
    if (!arg.isList()) continue;
    for (const c10::IValue& item : arg.toListRef()) add(item);
  }
  return tensors;
}

// True for types for which an op may have another kernel for large tensors that supports more
// types: only these two.
bool HasKernelsBySize(at::ScalarType dtype) { return at::isReducedFloatingType(dtype); }

// The key of everything on which the answer depends if there are elements.
Words KeyOf(const OpInfo& op, const std::vector<c10::IValue>& args) {
  Words key;
  key.Mix(static_cast<uint64_t>(op.number));
  const auto mix = [&](const at::Tensor& t) {
    key.Mix(t.defined() ? static_cast<uint64_t>(t.scalar_type()) << 8 |
                              static_cast<uint64_t>(t.dim()) << 1 | (IsNumber(t) ? 1 : 0)
                        : 0xffff);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgInfo& info = op.args[i];
    if (info.kind == ArgKind::kTensor && args[i].isTensor()) {
      mix(args[i].toTensor());
    } else if (info.kind == ArgKind::kTensorList && args[i].isList()) {
      key.Mix(args[i].toListRef().size());
      for (const c10::IValue& item : args[i].toListRef()) {
        mix(item.isTensor() ? item.toTensor() : at::Tensor());
      }
    } else if (info.kind == ArgKind::kOther) {
      MixIValue(key, args[i], info.is_dtype || args[i].isString());
    }
  }
  return key;
}

bool IsRandom(const OpInfo& op) { return op.handle.hasTag(at::Tag::nondeterministic_seeded); }

bool TakesGenerator(const OpInfo& op) {
  return std::any_of(op.args.begin(), op.args.end(),
                     [](const ArgInfo& info) { return info.kind == ArgKind::kGenerator; });
}

// Lets the op draw from a generator of its own.
void DrawOneNumber(const OpInfo& op, torch::jit::Stack& stack) {
  for (size_t i = 0; i < stack.size(); ++i) {
    if (op.args[i].kind == ArgKind::kGenerator)
      stack[i] = at::make_generator<at::CPUGeneratorImpl>();
    if (op.args[i].name == "size") stack[i] = std::vector<int64_t>{1};
  }
}

// The results, flattened, or the CPU's error.
struct Answer {
  std::vector<at::Tensor> results;
  std::optional<std::string> error;
};

Answer Try(const OpInfo& op, const std::vector<c10::IValue>& args, bool whole) {
  Answer answer;
  try {
    const runtime::DispatchGuard guard;
    const runtime::NoWorkers alone;
    torch::jit::Stack stack = WithTensors(op, args, c10::kCPU, [&](const at::Tensor& t) {
      if (IsNumber(t)) return t;
      std::vector<int64_t> sizes = t.sizes().vec();
      if (!whole) {
        for (int64_t& size : sizes) size = std::min(size, kShort);
      }
      return at::zeros(sizes, at::device(at::kCPU).dtype(t.scalar_type()));
    });
    if (IsRandom(op)) DrawOneNumber(op, stack);
    op.handle.callBoxed(&stack);
    for (const c10::IValue& value : stack) {
      if (value.isTensor()) answer.results.push_back(value.toTensor());
      if (!value.isTensorList()) continue;
      for (const at::Tensor& t : value.toTensorVector()) answer.results.push_back(t);
    }
  } catch (const c10::Error& e) {
    answer.error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    answer.error = e.what();
  }
  return answer;
}

bool SameResults(const Answer& answer, const Inference& meta, bool sizes) {
  if (answer.results.size() != meta.tensors.size()) return true;  // results that are not tensors
  for (size_t k = 0; k < meta.tensors.size(); ++k) {
    const TensorMeta& expected = meta.tensors[k];
    const at::Tensor& result = answer.results[k];
    if (!result.defined() || !expected.defined) continue;
    if (result.scalar_type() != expected.dtype) return false;
    if (sizes && result.sizes() != at::IntArrayRef(expected.sizes.data(), expected.sizes.size())) {
      return false;
    }
  }
  return true;
}

// For calls that read no values: the CPU's answer is complete.
bool AgreesAsItIs(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& meta) {
  const Answer answer = Try(op, args, /*whole=*/true);
  // Ops that PyTorch has for other devices only are left to this device.
  if (answer.error.has_value()) return Says(*answer.error, "Could not run");
  return SameResults(answer, meta, /*sizes=*/true);
}

bool IsDefinedOnNothing(const OpInfo& op) {
  return std::none_of(kUndefinedOnNothing.begin(), kUndefinedOnNothing.end(),
                      [&](std::string_view part) { return Says(op.name, part); });
}

// True if the CPU accepts the distribution's parameters and element type.
bool AgreesOnDistribution(const OpInfo& op, const std::vector<c10::IValue>& args) {
  return !Try(op, args, /*whole=*/false).error.has_value();
}

bool AgreesOnTypes(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& meta,
                   bool whole) {
  const Answer answer = Try(op, args, whole);
  if (!answer.error.has_value()) return SameResults(answer, meta, /*sizes=*/false);
  return std::none_of(kRefusals.begin(), kRefusals.end(),
                      [&](std::string_view part) { return Says(*answer.error, part); });
}

}  // namespace

bool IsDefinedOnZeros(const OpInfo& op) {
  return std::none_of(kUndefinedOnZeros.begin(), kUndefinedOnZeros.end(),
                      [&](std::string_view part) { return Says(op.name, part); });
}

std::vector<c10::IValue> WithTensors(const OpInfo& op, const std::vector<c10::IValue>& args,
                                     c10::DeviceType device,
                                     const std::function<at::Tensor(const at::Tensor&)>& other) {
  std::vector<c10::IValue> out;
  out.reserve(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgInfo& info = op.args[i];
    const c10::IValue& arg = args[i];
    const auto exchanged = [&](const c10::IValue& v) {
      const at::Tensor t = v.isTensor() ? v.toTensor() : at::Tensor();
      return t.defined() ? other(t) : t;
    };
    if (info.kind == ArgKind::kTensor && arg.isTensor()) {
      out.emplace_back(exchanged(arg));
    } else if (info.kind == ArgKind::kTensorList && arg.isList()) {
      if (arg.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> list;
        for (const c10::IValue& item : arg.toListRef()) {
          const at::Tensor t = exchanged(item);
          list.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
        }
        out.emplace_back(std::move(list));
      } else {
        std::vector<at::Tensor> list;
        for (const c10::IValue& item : arg.toListRef()) list.push_back(exchanged(item));
        out.emplace_back(std::move(list));
      }
    } else if (info.kind == ArgKind::kGenerator) {
      out.emplace_back();
    } else if (info.kind == ArgKind::kDropped && arg.isDevice()) {
      out.emplace_back(c10::Device(device));
    } else if (info.kind == ArgKind::kDropped && info.name == "pin_memory") {
      out.emplace_back();
    } else {
      out.push_back(arg);
    }
  }
  return out;
}

bool CpuAnswers::Agrees(const OpInfo& op, const std::vector<c10::IValue>& args,
                        const Inference& meta) {
  if (FirstPlace().is_cuda()) return true;  // a GPU's kernel takes other types, and gives others
  // Views have no kernels, and users' ops may have other effects than their results.
  if (op.is_view || !Says(op.name, "aten::")) return true;
  if (IsRandom(op)) return !TakesGenerator(op) || AgreesOnDistribution(op, args);
  if (op.must_run_on_host) return true;
  const std::vector<at::Tensor> tensors = TensorsOf(args);
  int64_t elements = 0, results = 0;
  bool one_type = true;
  bool has_integers = false;
  for (const at::Tensor& t : tensors) {
    elements += t.numel();
    one_type = one_type && t.scalar_type() == tensors[0].scalar_type();
    has_integers = has_integers || c10::isIntegralType(t.scalar_type(), /*includeBool=*/false);
  }
  for (const TensorMeta& t : meta.tensors) results += NumElements(t.sizes);
  if (tensors.empty()) return results > kElements || AgreesAsItIs(op, args, meta);
  if (elements == 0) return !IsDefinedOnNothing(op) || AgreesAsItIs(op, args, meta);
  const bool whole = elements <= kElements;
  // If the types differ, integers are mostly indices, and zero is one of every dimension as it is.
  const bool has_indices = !one_type && !op.elementwise && has_integers;
  if ((has_indices && !(whole && IsDefinedOnZeros(op))) ||
      (!whole && HasKernelsBySize(tensors[0].scalar_type()))) {
    return true;
  }
  constexpr size_t kMost = size_t{1} << 14;
  if (known_.size() >= kMost) known_.clear();
  const auto [known, is_new] = known_.try_emplace(KeyOf(op, args), true);
  if (is_new) known->second = AgreesOnTypes(op, args, meta, whole);
  return known->second;
}

}  // namespace spmd::trace
