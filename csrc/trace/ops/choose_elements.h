// SPDX-License-Identifier: Apache-2.0
// Chooses elements by flags, in ops that can be sharded along every dimension. The number of true
// flags up to each element is a cumulative sum, and each chosen element writes its place into a row
// that is as long as the number of chosen elements. Nothing is flattened or gathered; sharding
// costs an all-reduce of that row.
//
//   flags [[T, F], [T, T]]   ranks [[1, 1], [2, 3]]   total 3   places of 3: [0, 2, 3]
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace spmd::trace {

// The places in storage of the elements of a strided tensor, as integers on the device of
// `options`.
at::Tensor PlacesOf(at::IntArrayRef size, at::IntArrayRef stride, int64_t start,
                    const at::TensorOptions& options);

struct Ranks {
  at::Tensor inclusive;  // for each element the number of true ones up to it, row-major
  at::Tensor total;      // a scalar
};
Ranks RanksOf(const at::Tensor& flags);

// The `values`, which have the sizes of `flags`, at the first `count` true flags, as a tensor of
// size [count]; 0 where there are fewer.
at::Tensor Packed(const at::Tensor& values, const at::Tensor& flags, const Ranks& ranks,
                  int64_t count);
// The row-major places of the first `count` true flags, as a tensor of size [count]; 0 where there
// are fewer.
at::Tensor ChosenPlaces(const at::Tensor& flags, const Ranks& ranks, int64_t count);
// The coordinates of `places` in a tensor of sizes `size`, one tensor per dimension.
std::vector<at::Tensor> CoordinatesOf(const at::Tensor& places, at::IntArrayRef size);

// The coordinates of all true flags, [count, rank], stored column by column as the CPU's are. Waits
// for their number.
at::Tensor ChosenRows(const at::Tensor& flags);
// Its columns, one tensor per dimension.
std::vector<at::Tensor> ChosenCoordinates(const at::Tensor& flags);

}  // namespace spmd::trace
