// SPDX-License-Identifier: Apache-2.0
// The device's tensors and storages. They are PyTorch's own, but use the memory of ended ones again
// (csrc/util/pool.h), and take sizes and strides that need not be computed again.
//
//   auto form = TensorForm::Of(sizes, strides, offset);  // once for all tensors like it
//   at::Tensor t = compat::NewTensor<DeviceTensorImpl>(storage, keys, dtype);
//   DeviceTensorImpl::Of(t).TakeForm(form);
#pragma once

#include <c10/core/StorageImpl.h>

#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/compat/tensor_form.h"
#include "csrc/util/pool.h"

namespace spmd::trace {

using compat::FormedTensorImpl, compat::TensorForm;

// This class adds no state, so that copies that PyTorch makes (shallow_copy_and_detach) may be its
// own TensorImpl.
class DeviceTensorImpl final : public FormedTensorImpl, public Pooled<DeviceTensorImpl> {
 public:
  using FormedTensorImpl::FormedTensorImpl;

  // Requires: `tensor` was made as a DeviceTensorImpl.
  static DeviceTensorImpl& Of(const at::TensorBase& tensor) {
    return static_cast<DeviceTensorImpl&>(*tensor.unsafeGetTensorImpl());
  }
};

class DeviceStorageImpl final : public c10::StorageImpl, public Pooled<DeviceStorageImpl> {
 public:
  using c10::StorageImpl::StorageImpl;
};

}  // namespace spmd::trace
