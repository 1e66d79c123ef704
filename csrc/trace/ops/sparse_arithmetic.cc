// SPDX-License-Identifier: Apache-2.0
// Sums, element-wise products, masks and transposes of sparse tensors, in ops on their indices and
// values.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/trace/ops/sparse.h"
#include "csrc/trace/ops/sparse_parts.h"

namespace spmd::trace {

namespace {

// Waits for the number of different indices. Values of equal ones are added in their order.
at::Tensor Coalesced(const at::Tensor& self) {
  const at::Tensor indices = self._indices(), values = self._values();
  if (indices.size(1) < 2) return Coo(self, self.sizes(), indices.clone(), values.clone(), true);
  auto [places, group] = at::_unique(PlacesOf(self), /*sorted=*/true, /*return_inverse=*/true);
  std::vector<at::Tensor> along(indices.size(0));
  for (int64_t d = indices.size(0) - 1; d >= 0; --d) {
    along[d] = d == 0 ? places : places.remainder(self.size(d));
    places = places.div(self.size(d), "floor");
  }
  const int64_t n = places.size(0);
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = n;
  const at::ScalarType type = SumType(values.scalar_type());
  const at::Tensor sums =
      at::zeros(sizes, values.options().dtype(type)).index_add(0, group, values.to(type));
  return Coo(self, self.sizes(),
             along.empty() ? at::zeros({0, n}, indices.options()) : at::stack(along),
             sums.to(values.scalar_type()), true);
}

at::Tensor SparseMask(const at::Tensor& self, const at::Tensor& mask) {
  CheckHere("sparse_mask", {&self, &mask});
  TORCH_CHECK(self.sizes() == mask.sizes(),
              "sparse_mask(): operands have incompatible sizes; self has size ", self.sizes(),
              " but mask has size ", mask.sizes());
  const at::Tensor indices = mask._indices();
  at::Tensor values;
  if (self.is_sparse()) {
    TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(), "sparse_mask: the operands have ",
                self.sparse_dim(), " and ", mask.sparse_dim(), " sparse dimensions");
    values = ValuesAt(PlacesOf(mask), self.coalesce());
  } else if (indices.size(0) == 0) {
    values = self.unsqueeze(0).expand(mask._values().sizes()).clone();
  } else {
    values = at::index(self, AlongEachDim(indices));
  }
  return Coo(mask, mask.sizes(), indices.clone(), values, mask.is_coalesced());
}

// The values of `self` at indices that `mask` has, times how often it has them if `accumulate`;
// zeros in the place of the others.
at::Tensor MaskProjection(const at::Tensor& self, const at::Tensor& mask, bool accumulate) {
  CheckHere("_sparse_mask_projection", {&self, &mask});
  TORCH_CHECK(self.sizes() == mask.sizes() && self.sparse_dim() == mask.sparse_dim(),
              "_sparse_mask_projection(): operands have incompatible sizes; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  const at::Tensor values = self._values();
  const at::Tensor one_each = at::ones({mask._nnz()}, values.options());
  const at::Tensor counts = Coo(mask, mask.sizes().slice(0, mask.sparse_dim()), mask._indices(),
                                one_each, mask.is_coalesced());
  at::Tensor factors = ValuesAt(PlacesOf(self), counts.coalesce());
  if (!accumulate) factors = factors.clamp_max(1);
  return Coo(self, self.sizes(), self._indices().clone(), values.mul(EachOf(factors, values)),
             self.is_coalesced());
}

// --- sums ---

at::Tensor AddedTo(const at::Tensor& dense, const at::Tensor& sparse, const at::Scalar& alpha) {
  TORCH_CHECK(dense.sizes() == sparse.sizes(),
              "add: expected 'self' and 'other' to have the same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes());
  const at::ScalarType type = at::result_type(dense, sparse);
  const at::Tensor start = dense.to(type);
  const at::Tensor values = Times(sparse._values().to(type), alpha);
  const at::Tensor indices = sparse._indices();
  if (indices.size(1) == 0) return start.clone();
  if (indices.size(0) == 0) return start.add(values.sum(0));
  return start.index_put(AlongEachDim(indices), values, /*accumulate=*/true);
}

// The indices and values of both, one after the other.
at::Tensor Joined(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected sizes of 'self' and 'other' to match, ",
              "but ", self.sizes(), " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ",
              self.sparse_dim(), " sparse dimensions while 'other' has ", other.sparse_dim());
  const at::ScalarType type = at::result_type(self, other);
  const at::Tensor values = Times(other._values().to(type), alpha);
  const bool coalesced =
      self._nnz() == 0 ? other.is_coalesced() : other._nnz() == 0 && self.is_coalesced();
  return Coo(self, self.sizes(), at::cat({self._indices(), other._indices()}, 1),
             at::cat({self._values().to(type), values}), coalesced);
}

at::Tensor Sum(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  CheckHere("add", {&self, &other});
  if (!self.is_sparse()) return AddedTo(self, other, alpha);
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  const bool both = self.is_coalesced() && other.is_coalesced();
  const at::Tensor joined = Joined(self, other, alpha);
  return both && !joined.is_coalesced() ? Coalesced(joined) : joined;
}

// Each value gets the gradient of the sum that it is a term of.
at::Tensor SumBackward(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef dims) {
  const at::Tensor from = input.coalesce();
  const int64_t sparse_dims = from.sparse_dim();
  at::Tensor values = grad.unsqueeze(0);
  if (grad.is_sparse()) {
    std::vector<at::Tensor> kept;
    for (int64_t d = 0; d < sparse_dims; ++d) {
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
        kept.push_back(from._indices().select(0, d));
      }
    }
    values = ValuesAt(PlacesOf(at::stack(kept), grad.sizes()), grad.coalesce());
  }
  for (const int64_t d : dims) {
    if (d >= sparse_dims) values = values.unsqueeze(d - sparse_dims + 1);
  }
  return Coo(from, from.sizes(), from._indices().clone(),
             values.expand(from._values().sizes()).clone(), true);
}

// --- element-wise products ---

at::Tensor OfCommon(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.sizes() == other.sizes() && self.sparse_dim() == other.sparse_dim(),
              "mul: two sparse tensors must have the same size and the same sparse dimensions; "
              "their sizes are ",
              self.sizes(), " and ", other.sizes());
  const at::Tensor a = self.coalesce(), b = other.coalesce();
  if (a._nnz() == 0 || b._nnz() == 0) {
    const at::Tensor none = a._values().narrow(0, 0, 0);
    return Coo(self, self.sizes(), a._indices().narrow(1, 0, 0).clone(),
               none.to(at::result_type(self, other)), true);
  }
  const FoundPlaces found = Find(PlacesOf(a), b);
  const at::Tensor chosen = found.is_there.nonzero().squeeze(1);  // waits for their number
  return Coo(self, self.sizes(), a._indices().index_select(1, chosen),
             a._values().index_select(0, chosen).mul(
                 b._values().index_select(0, found.where.index_select(0, chosen))),
             true);
}

at::Tensor Product(const at::Tensor& self, const at::Tensor& other) {
  CheckHere("mul", {&self, &other});
  if (self.is_sparse() && other.is_sparse()) return OfCommon(self, other);
  const at::Tensor &sparse = self.is_sparse() ? self : other,
                   &dense = self.is_sparse() ? other : self;
  const at::Tensor indices = sparse._indices();
  at::Tensor factors = dense;
  if (dense.dim() > 0) {
    TORCH_CHECK(at::is_expandable_to(dense.sizes(), sparse.sizes()),
                "mul: a dense tensor of shape ", dense.sizes(),
                " does not broadcast to a sparse tensor of shape ", sparse.sizes());
    factors = dense.expand(sparse.sizes());
    if (indices.size(0) > 0) factors = at::index(factors, AlongEachDim(indices));
  }
  const at::Tensor values =
      self.is_sparse() ? sparse._values().mul(factors) : factors.mul(sparse._values());
  return Coo(sparse, sparse.sizes(), indices.clone(), values.to(at::result_type(self, other)),
             sparse.is_coalesced());
}

// --- the forms of an op: x = f(…), self.f_(…), f(…, out=…) ---

at::Tensor& SumInPlace(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return Into(self, Sum(self, other, alpha));
}
at::Tensor& SumInto(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  return Into(out, Sum(self, other, alpha));
}
at::Tensor& ProductInPlace(at::Tensor& self, const at::Tensor& other) {
  return Into(self, Product(self, other));
}
at::Tensor& ProductInto(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return Into(out, Product(self, other));
}

// --- views ---

// A copy, as PyTorch's is: of the values, and of the rows of indices in the other order.
at::Tensor Transposed(const at::Tensor& self, int64_t dim0, int64_t dim1) {
  dim0 = c10::maybe_wrap_dim(dim0, self.dim());
  dim1 = c10::maybe_wrap_dim(dim1, self.dim());
  const int64_t sparse_dims = self.sparse_dim();
  if (dim0 == dim1) return self.clone();
  const bool of_values = dim0 >= sparse_dims && dim1 >= sparse_dims;
  TORCH_CHECK(of_values || (dim0 < sparse_dims && dim1 < sparse_dims),
              "sparse transpose: transposed dimensions must be sparse; ", "got ", sparse_dims,
              " sparse dimensions, and ", dim0, " and ", dim1);
  std::vector<int64_t> sizes = self.sizes().vec();
  std::swap(sizes[dim0], sizes[dim1]);
  at::Tensor indices = self._indices(), values = self._values().clone();
  if (of_values) {
    return Coo(self, sizes, indices.clone(),
               values.transpose(dim0 - sparse_dims + 1, dim1 - sparse_dims + 1),
               self.is_coalesced());
  }
  std::vector<at::Tensor> along = indices.unbind(0);
  std::swap(along[dim0], along[dim1]);
  return Coo(self, sizes, at::stack(along), values, /*coalesced=*/false);
}

}  // namespace

void AddSparseArithmetic(torch::Library& library) {
  library.impl("_coalesce", TORCH_FN(Coalesced));
  library.impl("_sparse_mask_projection", TORCH_FN(MaskProjection));
  library.impl("_sparse_sum_backward", TORCH_FN(SumBackward));
  library.impl("add.Tensor", TORCH_FN(Sum));
  library.impl("add.out", TORCH_FN(SumInto));
  library.impl("add_.Tensor", TORCH_FN(SumInPlace));
  library.impl("mul.Tensor", TORCH_FN(Product));
  library.impl("mul.out", TORCH_FN(ProductInto));
  library.impl("mul_.Tensor", TORCH_FN(ProductInPlace));
  library.impl("sparse_mask", TORCH_FN(SparseMask));
  library.impl("transpose.int", TORCH_FN(Transposed));
}

}  // namespace spmd::trace
