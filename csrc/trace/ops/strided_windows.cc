// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/strided_windows.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

std::optional<at::Tensor> AsSlices(const at::Tensor& self, at::IntArrayRef size,
                                   at::IntArrayRef stride, std::optional<int64_t> offset) {
  const auto rank = static_cast<int64_t>(size.size());
  const int64_t own = self.dim();
  int64_t rest = offset.value_or(self.storage_offset()) - self.storage_offset();
  if (!Buffer::IsOurs(self) || stride.size() != size.size() || rest < 0 || self.numel() == 0 ||
      std::find(size.begin(), size.end(), 0) != size.end()) {
    return std::nullopt;
  }
  if (rest == 0 && c10::multiply_integers(size) == self.numel() && compat::HasView(self, size)) {
    at::Tensor whole = self.view(size);
    if (whole.strides() == stride) return whole;
  }
  // Where the view starts in each dimension, and which of its dimensions is a slice of it.
  std::vector<int64_t> by_stride(own), start(own), of(own, -1), step(own, 1);
  std::iota(by_stride.begin(), by_stride.end(), 0);
  std::stable_sort(by_stride.begin(), by_stride.end(),
                   [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  for (const int64_t d : by_stride) {
    if (self.size(d) == 1) continue;
    if (self.stride(d) < 1) return std::nullopt;  // expanded
    start[d] = std::min(rest / self.stride(d), self.size(d) - 1);
    rest -= start[d] * self.stride(d);
  }
  if (rest != 0) return std::nullopt;
  for (int64_t k = 0; k < rank; ++k) {
    const auto fits = [&](int64_t d) {
      if (of[d] >= 0) return false;
      if (size[k] == 1) return self.stride(d) == stride[k];
      return self.size(d) > 1 && stride[k] >= self.stride(d) && stride[k] % self.stride(d) == 0 &&
             start[d] + (size[k] - 1) * (stride[k] / self.stride(d)) < self.size(d);
    };
    const auto found = std::find_if(by_stride.begin(), by_stride.end(), fits);
    if (found == by_stride.end()) return std::nullopt;
    of[*found] = k;
    if (size[k] > 1) step[*found] = stride[k] / self.stride(*found);
  }
  at::Tensor view = self;
  std::vector<int64_t> order(rank);
  int64_t kept = 0;
  for (int64_t d = 0; d < own; ++d) {
    if (of[d] < 0) {
      view = view.select(kept, start[d]);
      continue;
    }
    const int64_t length = (size[of[d]] - 1) * step[d] + 1;
    if (length < self.size(d) || step[d] > 1) {
      view = view.slice(kept, start[d], start[d] + length, step[d]);
    }
    order[of[d]] = kept++;
  }
  view = view.permute(order);
  return view.strides() == stride ? std::optional<at::Tensor>(view) : std::nullopt;
}

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
