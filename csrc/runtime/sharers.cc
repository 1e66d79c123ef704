// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/sharers.h"

namespace spmd::runtime {

bool PartPlace::Holds(const at::Tensor& part, const at::Tensor& whole) const {
  std::vector<int64_t> strides = whole.strides().vec();
  int64_t offset = part.storage_offset();
  if (begin) {
    const int64_t from = *begin < 0 ? *begin + whole.size(dim) : *begin;
    offset = whole.storage_offset() + from * strides[dim];
  }
  if (drops_dim) {
    strides.erase(strides.begin() + dim);
  } else {
    strides[dim] *= step;
  }
  return part.storage_offset() == offset && part.strides() == at::IntArrayRef(strides) &&
         part.is_conj() == whole.is_conj() && part.is_neg() == whole.is_neg();
}

}  // namespace spmd::runtime
