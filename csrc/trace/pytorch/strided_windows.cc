// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/strided_windows.h"

#include <vector>

#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

std::optional<at::Tensor> AsWindows(const at::Tensor& self, at::IntArrayRef size,
                                    at::IntArrayRef stride, std::optional<int64_t> offset) {
  const size_t rank = size.size(), own = self.sizes().size();
  if (!Buffer::IsOurs(self) || stride.size() != rank || rank < 2 || own < 1 ||
      offset.value_or(self.storage_offset()) != self.storage_offset()) {
    return std::nullopt;
  }
  // The dimensions that both have stay; between them are windows and the rows of a window in the
  // view, and dimensions that are one of rows in the tensor.
  const auto same = [&](size_t mine, size_t its) {
    return self.sizes()[mine] == size[its] && self.strides()[mine] == stride[its];
  };
  size_t before = 0, after = 0;
  while (before + 2 < rank && before + 1 < own && same(before, before)) ++before;
  while (before + after + 2 < rank && before + after + 1 < own &&
         same(own - 1 - after, rank - 1 - after)) {
    ++after;
  }
  if (before + after + 2 != rank) return std::nullopt;
  const size_t last = own - 1 - after;
  int64_t rows = self.sizes()[last];
  const int64_t row = self.strides()[last];
  for (size_t d = last; d-- > before;) {
    if (self.strides()[d] != row * rows) return std::nullopt;
    rows *= self.sizes()[d];
  }
  const int64_t count = size[before], length = size[before + 1];
  if (row < 1 || stride[before + 1] != row || stride[before] % row != 0) return std::nullopt;
  const int64_t step = stride[before] / row;
  const bool overlap = 0 < step && step < length;  // others are read and written by their strides
  if (!overlap || count < 2 || (count - 1) * step + length > rows) return std::nullopt;
  std::vector<int64_t> apart(size.begin(), size.begin() + static_cast<int64_t>(before));
  apart.push_back(rows);
  apart.insert(apart.end(), size.end() - static_cast<int64_t>(after), size.end());
  const auto dim = static_cast<int64_t>(before);
  return self.view(apart).unfold(dim, length, step).narrow(dim, 0, count).movedim(-1, dim + 1);
}

}  // namespace spmd::trace
