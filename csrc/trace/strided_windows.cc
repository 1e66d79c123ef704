// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/strided_windows.h"

#include <algorithm>
#include <vector>

#include "csrc/trace/buffer.h"

namespace spmd::trace {

namespace {

// The elements of `sizes[from:]` if the dimensions from there on are contiguous, else 0.
int64_t ContiguousElements(at::IntArrayRef sizes, at::IntArrayRef strides, size_t from) {
  int64_t elements = 1;
  for (size_t d = sizes.size(); d-- > from;) {
    if (strides[d] != elements) return 0;
    elements *= sizes[d];
  }
  return elements;
}

}  // namespace

std::optional<at::Tensor> AsWindows(const at::Tensor& self, at::IntArrayRef size,
                                    at::IntArrayRef stride, std::optional<int64_t> offset) {
  if (!Buffer::IsOurs(self) || !self.is_contiguous() || self.numel() == 0 ||
      size.size() != stride.size() ||
      offset.value_or(self.storage_offset()) != self.storage_offset()) {
    return std::nullopt;
  }
  // The dimensions that the view and the tensor have in common come first.
  size_t common = 0;
  int64_t block = self.numel();
  while (common < size.size() && common < static_cast<size_t>(self.dim()) &&
         size[common] == self.sizes()[common] && stride[common] == self.strides()[common]) {
    block /= size[common++];
  }
  // Then come the windows and the rows of a window, each of `row` elements.
  if (common == 0 || size.size() < common + 2) return std::nullopt;
  const int64_t count = size[common], length = size[common + 1], row = stride[common + 1];
  if (count < 2 || length < 2 || row < 1 || ContiguousElements(size, stride, common + 2) != row ||
      block % row != 0 || stride[common] < 1 || stride[common] % row != 0) {
    return std::nullopt;
  }
  const int64_t rows = block / row, step = stride[common] / row;
  const bool overlap = step < length;  // others are read and written by their strides
  if (!overlap || rows < length || (rows - length) / step + 1 < count) return std::nullopt;
  std::vector<int64_t> apart(size.begin(), size.begin() + static_cast<int64_t>(common));
  apart.push_back(rows);
  apart.insert(apart.end(), size.begin() + static_cast<int64_t>(common) + 2, size.end());
  const auto dim = static_cast<int64_t>(common);
  return self.view(apart).unfold(dim, length, step).narrow(dim, 0, count).movedim(-1, dim + 1);
}

}  // namespace spmd::trace
