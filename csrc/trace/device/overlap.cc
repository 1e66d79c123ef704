// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/device/overlap.h"

namespace spmd::trace {

void CheckNoPartialOverlap(const at::Tensor& target, const at::Tensor& source) {
  if (!source.defined() || target.is_same(source) || !source.has_storage() ||
      !target.storage().is_alias_of(source.storage())) {
    return;
  }
  if (target.numel() == 0 || source.numel() == 0 || !target.is_non_overlapping_and_dense() ||
      !source.is_non_overlapping_and_dense()) {
    return;
  }
  const auto begin = [](const at::Tensor& t) {
    return t.storage_offset() * static_cast<int64_t>(t.itemsize());
  };
  const int64_t a = begin(target), b = begin(source);
  const int64_t a_end = a + static_cast<int64_t>(target.nbytes());
  const int64_t b_end = b + static_cast<int64_t>(source.nbytes());
  const bool full = a == b && a_end == b_end && target.strides() == source.strides();
  TORCH_CHECK(full || b_end <= a || a_end <= b,
              "unsupported operation: some elements of the input tensor and the written-to tensor "
              "refer to a single memory location. Please clone() the tensor before performing the "
              "operation.");
}

}  // namespace spmd::trace
