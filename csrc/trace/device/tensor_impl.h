// SPDX-License-Identifier: Apache-2.0
// The device's tensors and storages. They are PyTorch's own, but use the memory of ended ones again
// (csrc/util/pool.h), and take sizes and strides that need not be computed again.
//
//   auto form = TensorForm::Of(sizes, strides, offset);  // once for all tensors like it
//   at::Tensor t = at::detail::make_tensor_base<DeviceTensorImpl>(storage, keys, dtype);
//   DeviceTensorImpl::Of(t).TakeForm(form);
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "csrc/util/pool.h"

namespace spmd::trace {

// Sizes, strides and offset, and what PyTorch derives from them: the number of elements, the memory
// formats.
struct TensorForm {
  c10::impl::SizesAndStrides sizes_and_strides;
  int64_t offset = 0;
  int64_t numel = 0;
  bool contiguous = false;
  bool channels_last = false;
  bool channels_last_contiguous = false;
  bool channels_last_3d = false;
  bool channels_last_3d_contiguous = false;
  bool non_overlapping_and_dense = false;
  // True if `t` certainly has this form. It may be false although `t` has the form: a tensor that
  // lost dimensions in place keeps their numbers. Requires: the sizes of `t` are not symbolic.
  bool IsSurelyOf(c10::TensorImpl& t) const {
    return offset == t.storage_offset() && sizes_and_strides == t.sizes_and_strides();
  }
  // Throws: c10::Error if PyTorch refuses `sizes`, `strides` or `offset`.
  static TensorForm Of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset);
};

// A tensor that takes forms.
class FormedTensorImpl : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  TensorForm form() const {
    return {.sizes_and_strides = sizes_and_strides_,
            .offset = storage_offset_,
            .numel = numel_,
            .contiguous = is_contiguous_,
            .channels_last = is_channels_last_,
            .channels_last_contiguous = is_channels_last_contiguous_,
            .channels_last_3d = is_channels_last_3d_,
            .channels_last_3d_contiguous = is_channels_last_3d_contiguous_,
            .non_overlapping_and_dense = is_non_overlapping_and_dense_};
  }
  void TakeForm(const TensorForm& form) {
    sizes_and_strides_ = form.sizes_and_strides;
    storage_offset_ = form.offset;
    numel_ = form.numel;
    is_contiguous_ = form.contiguous;
    is_channels_last_ = form.channels_last;
    is_channels_last_contiguous_ = form.channels_last_contiguous;
    is_channels_last_3d_ = form.channels_last_3d;
    is_channels_last_3d_contiguous_ = form.channels_last_3d_contiguous;
    is_non_overlapping_and_dense_ = form.non_overlapping_and_dense;
  }
};

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

inline TensorForm TensorForm::Of(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  DeviceTensorImpl impl(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                        caffe2::TypeMeta::Make<float>(), c10::Device(c10::DeviceType::PrivateUse1));
  impl.set_sizes_and_strides(sizes, strides, offset);
  return impl.form();
}

}  // namespace spmd::trace
