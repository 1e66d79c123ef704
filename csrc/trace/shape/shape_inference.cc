// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/shape_inference.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/compat/torch_function.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/place.h"
#include "csrc/trace/shape/argument_checks.h"
#include "csrc/trace/shape/cpu_forms.h"
#include "csrc/trace/shape/meta_overrides.h"
#include "csrc/trace/shape/rule_fit.h"

namespace spmd::trace {

namespace {

void MixTensor(Words& words, const at::Tensor& t) {
  if (!t.defined()) {
    words.Mix(0x77);
    return;
  }
  constexpr uint64_t kTensor = uint64_t{1} << 32;
  words.Mix(kTensor | static_cast<uint64_t>(t.scalar_type()) << 4 |
            static_cast<uint64_t>(t.unsafeGetTensorImpl()->is_wrapped_number()) << 2 |
            static_cast<uint64_t>(t.is_conj()) << 1 | static_cast<uint64_t>(t.is_neg()));
  words.Mix(t.sizes());
  words.Mix(t.strides());
  words.Mix(static_cast<uint64_t>(t.storage_offset()));
}

at::Tensor ToMeta(const at::Tensor& t) {
  // Numbers and 0-dim CPU tensors combine with Meta tensors as with others.
  if (t.device().is_cpu() && t.dim() == 0) return t;
  const auto dtype = t.scalar_type();
  at::Tensor meta;
  if (t.storage_offset() == 0) {
    meta = compat::EmptyOnMeta(t.sizes(), t.strides(), dtype);
  } else {
    const int64_t elements =
        static_cast<int64_t>(t.storage().nbytes()) / static_cast<int64_t>(t.itemsize());
    meta = compat::EmptyOnMeta({elements}, {1}, dtype);
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  }
  return meta;
}

// The results of the call on Meta.
torch::jit::Stack OnMeta(const OpInfo& op, const std::vector<c10::IValue>& args) {
  const runtime::DispatchGuard guard;
  const compat::NoTorchFunction no_torch_function;
  std::optional<MetaAnswersForCpu> for_cpu;
  if (!FirstPlace().is_cuda()) for_cpu.emplace();
  torch::jit::Stack stack = WithTensors(op, args, c10::kMeta, ToMeta);
  op.handle.callBoxed(&stack);
  return stack;
}

Inference Ask(const OpInfo& op, const std::vector<c10::IValue>& args) {
  Inference result;
  result.ok = OwnShapes(op, args, result);
  if (result.ok) {
    CorrectAsOnCpu(op, args, result);
    return result;
  }
  torch::jit::Stack stack;
  try {
    stack = OnMeta(op, args);
  } catch (const std::exception&) {
    return result;
  }
  for (const c10::IValue& value : stack) {
    int count = 0;
    if (value.isTensor()) {
      result.tensors.push_back(TensorMeta::Of(value.toTensor()));
      count = 1;
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        result.tensors.push_back(TensorMeta::Of(t));
        ++count;
      }
    } else {
      return result;
    }
    result.counts.push_back(count);
  }
  try {
    CorrectAsOnCpu(op, args, result);
  } catch (const std::exception&) {
    return result;  // its kernel says what is wrong
  }
  result.ok = true;
  return result;
}

}  // namespace

TensorMeta TensorMeta::Of(const at::Tensor& t) {
  TensorMeta meta;
  meta.defined = t.defined();
  if (!meta.defined) return meta;
  meta.dtype = t.scalar_type();
  meta.sizes.assign(t.sizes().begin(), t.sizes().end());
  meta.strides.assign(t.strides().begin(), t.strides().end());
  meta.offset = t.storage_offset();
  return meta;
}

TensorMeta TensorMeta::Contiguous(at::ScalarType dtype, at::IntArrayRef sizes) {
  TensorMeta meta;
  meta.dtype = dtype;
  meta.sizes.assign(sizes.begin(), sizes.end());
  meta.strides.resize(sizes.size());
  int64_t next = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    meta.strides[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return meta;
}

TensorMetaPtr Shared(const TensorMeta& meta) {
  // Beyond this number they are forgotten, and equal metadata get another serial.
  constexpr size_t kMost = 1 << 14;
  static auto* const known = new absl::flat_hash_map<TensorMeta, TensorMetaPtr>;
  static uint64_t last_serial = 0;
  const auto it = known->find(meta);
  if (it != known->end()) return it->second;
  if (known->size() == kMost) known->clear();
  auto shared = std::make_shared<TensorMeta>(meta);
  shared->serial = ++last_serial;
  known->emplace(meta, shared);
  return shared;
}

void ShapeCache::Refuse(const OpInfo& op, const std::vector<c10::IValue>& args) {
  OnMeta(op, args);
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_spmd: PyTorch cannot say what shape ", op.name,
                              " has for these arguments");
}

const Inference& ShapeCache::Infer(const OpInfo& op, const std::vector<c10::IValue>& args) {
  Words key;
  key.Mix(static_cast<uint64_t>(op.number));
  key.Mix(static_cast<uint64_t>(at::typeMetaToScalarType(at::get_default_dtype())));
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgInfo& info = op.args[i];
    if (info.kind == ArgKind::kTensor && args[i].isTensor()) {
      MixTensor(key, args[i].toTensor());
    } else if (info.kind == ArgKind::kTensorList && args[i].isList()) {
      const auto items = args[i].toListRef();
      key.Mix(items.size());
      for (const c10::IValue& item : items) {
        MixTensor(key, item.isTensor() ? item.toTensor() : at::Tensor());
      }
    } else if (info.kind != ArgKind::kGenerator) {
      MixIValue(key, args[i], info.number.use != NumberUse::kFree);
    }
  }
  if (const auto it = recent_.find(key); it != recent_.end()) return *it->second;
  constexpr size_t kMost = 1 << 13;
  if (recent_.size() >= kMost) {
    older_ = std::move(recent_);
    recent_.clear();
  }
  if (const auto it = older_.find(key); it != older_.end()) {
    return *(recent_[key] = std::move(it->second));
  }
  Inference answer = Ask(op, args);  // may call back into the session
  answer.ok = answer.ok && TakesArguments(op, args) && FitsRule(op, args, answer) &&
              cpu_.Agrees(op, args, answer);
  std::unique_ptr<Inference>& fresh = recent_[std::move(key)];
  fresh = std::make_unique<Inference>(std::move(answer));
  return *fresh;
}

}  // namespace spmd::trace
