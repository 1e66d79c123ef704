// SPDX-License-Identifier: Apache-2.0
// What the function of a manual region sees while its ops are only noted
// (csrc/trace/api/shard_run.h): a tensor that knows its shape, and which one it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <typeinfo>

#include "csrc/trace/compat/tensor_form.h"
#include "csrc/trace/device/device_type.h"

namespace spmd::trace {

// It has no memory, and autograd does not see ops on it.
class ShardImpl final : public compat::FormedTensorImpl {
 public:
  // Shard `number` of the run with this number. Numbers of runs are never used again.
  ShardImpl(uint64_t run, int32_t number, const compat::TensorForm& form, at::ScalarType dtype)
      : FormedTensorImpl(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                         c10::scalarTypeToTypeMeta(dtype), c10::Device(kDeviceType, 0)),
        run(run),
        number(number) {
    SetKeys(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1));
    TakeForm(form);
    set_storage_access_should_throw();
  }

  // Null for any other tensor. Requires: `t` is defined.
  static const ShardImpl* Of(const at::Tensor& t) {
    const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
    return typeid(impl) == typeid(ShardImpl) ? static_cast<const ShardImpl*>(&impl) : nullptr;
  }

  // No copy is a shard.
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&,
                                                              bool) const override {
    Refuse();
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&,
                                                              bool) const override {
    Refuse();
  }

  const uint64_t run;
  const int32_t number;

 private:
  [[noreturn]] static void Refuse() {
    TORCH_CHECK(false, "torch_spmd: a shard of a manual region cannot be copied like this");
  }
};

}  // namespace spmd::trace
