// SPDX-License-Identifier: Apache-2.0
// The elements of the global tensor that a tile holds. Random ops draw by global index.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace spmd::runtime::kernels {

// The elements of a tile as runs that are contiguous both in the tile and in the global tensor.
class TileRuns {
 public:
  TileRuns(at::IntArrayRef size, at::IntArrayRef offset, at::IntArrayRef global_size)
      : size_(size.begin(), size.end()), offset_(offset.begin(), offset.end()) {
    TORCH_CHECK(size.size() == offset.size() && size.size() == global_size.size(),
                "spmd: a random tile's size ", size, ", offset ", offset, " and global_size ",
                global_size, " must have one entry per dimension");
    stride_.resize(size.size());
    int64_t stride = 1;
    for (int64_t d = static_cast<int64_t>(size.size()) - 1; d >= 0; --d) {
      TORCH_CHECK(offset[d] >= 0 && offset[d] + size[d] <= global_size[d],
                  "spmd: the random tile at offset ", offset, " of size ", size,
                  " is not inside the tensor of size ", global_size);
      stride_[d] = stride;
      stride *= global_size[d];
    }
    outer_ = static_cast<int64_t>(size.size());
    while (outer_ > 0) {
      --outer_;
      run_ *= size[outer_];
      if (size[outer_] != global_size[outer_]) break;
    }
  }

  // Calls f(local, global, length) for the pieces of the tile's elements [begin, end).
  template <typename F>
  void ForEach(int64_t begin, int64_t end, const F& f) const {
    while (begin < end) {
      const int64_t column = begin % run_;
      const int64_t length = std::min(run_ - column, end - begin);
      f(begin, RunStart(begin / run_) + column, length);
      begin += length;
    }
  }

 private:
  int64_t RunStart(int64_t run) const {
    int64_t start = 0;
    for (int64_t d = outer_ - 1; d >= 0; --d) {
      start += (offset_[d] + run % size_[d]) * stride_[d];
      run /= size_[d];
    }
    for (size_t d = outer_; d < size_.size(); ++d) start += offset_[d] * stride_[d];
    return start;
  }

  absl::InlinedVector<int64_t, 5> size_, offset_, stride_;
  int64_t outer_ = 0;  // the number of dimensions in front of those that make up a run
  int64_t run_ = 1;
};

}  // namespace spmd::runtime::kernels
