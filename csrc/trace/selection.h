// SPDX-License-Identifier: Apache-2.0
// Choosing elements by flags in ops that can be cut along every dimension: how many true flags come
// before each one is a cumulative sum, and each chosen element writes its place into a row as long
// as what is chosen. Nothing is flattened or gathered; a cut costs that row's all-reduce.
//
//   flags [[T, F], [T, T]]   ranks [[1, 1], [2, 3]]   total 3   places of 3: [0, 2, 3]
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace spmd::trace {

// Where the elements of a strided tensor are, an integer for each, on the device of `options`.
at::Tensor PlacesOf(at::IntArrayRef size, at::IntArrayRef stride, int64_t start,
                    const at::TensorOptions& options);

struct Ranks {
  at::Tensor inclusive;  // of each element, how many true ones there are up to it, row-major
  at::Tensor total;      // a scalar
};
Ranks RanksOf(const at::Tensor& flags);

// The values [like flags] of the first `count` true flags in a row, [count]; 0 where there are
// fewer.
at::Tensor Packed(const at::Tensor& values, const at::Tensor& flags, const Ranks& ranks,
                  int64_t count);
// The row-major places of the first `count` true flags, [count]; 0 where there are fewer.
at::Tensor ChosenPlaces(const at::Tensor& flags, const Ranks& ranks, int64_t count);
// The same of all of them. Waits for their number.
at::Tensor ChosenPlaces(const at::Tensor& flags);
// By dimension of a tensor of that size, the coordinates of places in it.
std::vector<at::Tensor> CoordinatesOf(const at::Tensor& places, at::IntArrayRef size);

}  // namespace spmd::trace
