// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

std::vector<int64_t> ResultSize(const Tensor& self, const Tensor& mat2, int64_t num_groups) {
  if (self.dim() == 2 && mat2.dim() == 2) return {num_groups, self.size(0), mat2.size(1)};
  return {self.size(-2), mat2.size(-1)};
}

// The ends of all groups, relative to the held indices [first_index, first_index + size).
std::vector<int64_t> LocalEnds(const Tensor& offsets, int64_t first_index, int64_t size) {
  const Tensor ends = offsets.to(at::kCPU, at::kLong).contiguous();
  std::vector<int64_t> local(ends.numel());
  for (size_t g = 0; g < local.size(); ++g) {
    local[g] = std::clamp<int64_t>(ends.const_data_ptr<int64_t>()[g] - first_index, 0, size);
  }
  return local;
}

}  // namespace

Tensor GroupedMatmul(const Tensor& self, const Tensor& mat2, const Tensor& offsets,
                     int64_t first_group, int64_t num_groups, int64_t first_index) {
  TORCH_CHECK(self.dim() + mat2.dim() <= 5 && self.dim() >= 2 && mat2.dim() >= 2,
              "spmd::grouped_mm: expected matrices of rank 2 and 3, one of rank 2; got ",
              self.sizes(), " and ", mat2.sizes());
  Tensor result = at::zeros(ResultSize(self, mat2, num_groups), self.options());
  if (self.is_meta() || result.numel() == 0) return result;
  const bool rows = self.dim() == 2 && mat2.dim() == 3;
  const int64_t divided = rows                                 ? self.size(0)
                          : mat2.dim() == 2 && self.dim() == 2 ? self.size(1)
                                                               : mat2.size(1);
  const std::vector<int64_t> ends = LocalEnds(offsets, first_index, divided);
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t group = first_group + g;
    const int64_t begin = group == 0 ? 0 : ends[group - 1], end = ends[group];
    if (end <= begin) continue;
    if (rows) {
      Tensor out = result.slice(0, begin, end);
      at::mm_out(out, self.slice(0, begin, end), mat2.select(0, g));
    } else if (self.dim() == 3) {
      Tensor out = result.slice(1, begin, end);
      at::mm_out(out, self.select(0, g), mat2.slice(1, begin, end));
    } else {
      Tensor out = result.select(0, g);
      at::mm_out(out, self.slice(1, begin, end), mat2.slice(0, begin, end));
    }
  }
  return result;
}

}  // namespace spmd::runtime::kernels
