// SPDX-License-Identifier: Apache-2.0
// What ops on the indices and values of a sparse tensor have in common.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>

namespace spmd::trace {

// Errors: RuntimeError if one of the tensors is not on the device; numbers may be on the CPU.
void CheckHere(const char* op, std::initializer_list<const at::Tensor*> tensors);

// A sparse tensor with other indices and values than `like`.
at::Tensor Coo(const at::Tensor& like, at::IntArrayRef sizes, const at::Tensor& indices,
               const at::Tensor& values, bool coalesced);

// The type in which numbers are added up, so that sums of half types are rounded once.
at::ScalarType SumType(at::ScalarType type);
at::Tensor Times(const at::Tensor& x, const at::Scalar& alpha);

// The indices as a dense tensor takes them: [nnz] along each sparse dimension.
c10::List<std::optional<at::Tensor>> AlongEachDim(const at::Tensor& indices);

// The place of each index in the order of coalesced tensors: [nnz]. The index (i, j, k) of sizes
// (a, b, c) is (i · b + j) · c + k.
at::Tensor PlacesOf(const at::Tensor& indices, at::IntArrayRef sizes);
at::Tensor PlacesOf(const at::Tensor& sparse);

// Where among the indices of a sparse tensor each wanted place is, and whether it is there.
struct FoundPlaces {
  at::Tensor where, is_there;
};
// Requires: `sparse` is coalesced and has a value or more.
FoundPlaces Find(const at::Tensor& wanted, const at::Tensor& sparse);
// The values of a coalesced tensor at these places: zeros where it has none.
at::Tensor ValuesAt(const at::Tensor& wanted, const at::Tensor& sparse);
// A number for each value [nnz, …], as it broadcasts.
at::Tensor EachOf(const at::Tensor& numbers, const at::Tensor& values);

// Writes what an op has computed to the tensor that the caller has given.
at::Tensor& Into(at::Tensor& out, const at::Tensor& result);

// Whether a compressed layout says where rows start, and not columns.
inline bool IsOfRows(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseBsr;
}

}  // namespace spmd::trace
