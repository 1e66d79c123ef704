// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/sparse_parts.h"

#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "csrc/trace/device/device_type.h"

namespace spmd::trace {

void CheckHere(const char* op, std::initializer_list<const at::Tensor*> tensors) {
  for (const at::Tensor* const t : tensors) {
    TORCH_CHECK(t->device().type() == kDeviceType || (t->dim() == 0 && t->is_cpu()),
                "torch_spmd: ", op, ": a tensor of shape ", t->sizes(), " is on '", t->device(),
                "', another on '", TheDevice(), "'; move it first: t = t.to('spmd')");
  }
}

at::Tensor Coo(const at::Tensor& like, at::IntArrayRef sizes, const at::Tensor& indices,
               const at::Tensor& values, bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      indices.size(0), values.dim() - 1, sizes, indices, values,
      like.options().layout(at::kSparse).dtype(values.scalar_type()),
      coalesced || indices.size(1) < 2);
}

at::ScalarType SumType(at::ScalarType type) {
  return at::isReducedFloatingType(type) ? at::kFloat : type;
}

c10::List<std::optional<at::Tensor>> AlongEachDim(const at::Tensor& indices) {
  c10::List<std::optional<at::Tensor>> along;
  for (const at::Tensor& dim : indices.unbind(0)) along.push_back(dim);
  return along;
}

at::Tensor PlacesOf(const at::Tensor& indices, at::IntArrayRef sizes) {
  at::Tensor places = at::zeros({indices.size(1)}, indices.options());
  for (int64_t d = 0; d < indices.size(0); ++d) {
    const at::Tensor along = indices.select(0, d);
    places = d == 0 ? along : places.mul(sizes[d]).add(along);
  }
  return places;
}
at::Tensor PlacesOf(const at::Tensor& sparse) {
  return PlacesOf(sparse._indices(), sparse.sizes());
}

FoundPlaces Find(const at::Tensor& wanted, const at::Tensor& sparse) {
  const at::Tensor places = PlacesOf(sparse);
  const at::Tensor where = at::searchsorted(places, wanted).clamp_max(places.size(0) - 1);
  return {where, places.index_select(0, where).eq(wanted)};
}

at::Tensor EachOf(const at::Tensor& numbers, const at::Tensor& values) {
  std::vector<int64_t> sizes(values.dim(), 1);
  sizes[0] = values.size(0);
  return numbers.view(sizes);
}

at::Tensor ValuesAt(const at::Tensor& wanted, const at::Tensor& sparse) {
  std::vector<int64_t> sizes = sparse._values().sizes().vec();
  sizes[0] = wanted.size(0);
  if (sparse._nnz() == 0) return at::zeros(sizes, sparse._values().options());
  const FoundPlaces found = Find(wanted, sparse);
  const at::Tensor values = sparse._values().index_select(0, found.where);
  return values.masked_fill(EachOf(found.is_there, values).logical_not(), 0);
}

at::Tensor Times(const at::Tensor& x, const at::Scalar& alpha) {
  return alpha.equal(1) ? x : x.mul(alpha);
}

at::Tensor& Into(at::Tensor& out, const at::Tensor& result) {
  TORCH_CHECK(at::canCast(result.scalar_type(), out.scalar_type()), "result type ",
              result.scalar_type(), " can't be cast to the desired output type ",
              out.scalar_type());
  if (out.layout() == at::kStrided && out.sizes() != result.sizes()) out.resize_(result.sizes());
  out.copy_(result);
  return out;
}

}  // namespace spmd::trace
