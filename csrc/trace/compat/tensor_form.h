// SPDX-License-Identifier: Apache-2.0
// Tensors that take sizes and strides that need not be computed again (see
// csrc/trace/compat/keys.h).
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace spmd::compat {

// Sizes, strides and offset, and what PyTorch derives from them: the number of elements, the memory
// formats. Instead: TensorImpl::set_sizes_and_strides, which derives it again. Without: functions
// of regions do not run on shards.
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
  static TensorForm Of(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
};

// A tensor that takes forms, by members that TensorImpl protects. Instead and without: as above.
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

 protected:
  // Without the keys of autograd, which the constructor adds.
  void SetKeys(c10::DispatchKeySet keys) { key_set_ = keys; }
};

inline TensorForm TensorForm::Of(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  FormedTensorImpl impl(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                        caffe2::TypeMeta::Make<float>(), c10::Device(c10::DeviceType::PrivateUse1));
  impl.set_sizes_and_strides(sizes, strides, offset);
  return impl.form();
}

}  // namespace spmd::compat
