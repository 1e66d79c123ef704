// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices with dense ones.
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include "csrc/trace/ops/sparse.h"
#include "csrc/trace/ops/sparse_parts.h"

namespace spmd::trace {

namespace {

// start + alpha · A @ dense, where A has `values` at (rows, columns). Sums of half types are
// rounded once.
at::Tensor PlusRows(const at::Tensor& start, const at::Tensor& rows, const at::Tensor& columns,
                    const at::Tensor& values, const at::Tensor& dense, const at::Scalar& alpha) {
  const at::ScalarType type = SumType(dense.scalar_type());
  const at::Tensor terms =
      dense.index_select(0, columns).to(type).mul(values.to(type).unsqueeze(1));
  return start.to(type).index_add(0, rows, Times(terms, alpha)).to(dense.scalar_type());
}

// A sparse matrix as the list of its blocks: block k, of values [height, width], is in row rows[k]
// and column columns[k] of blocks. Blocks of one number are plain numbers: values [n].
struct Blocks {
  at::Tensor rows, columns, values;

  Blocks Transposed() const {
    return {columns, rows, values.dim() == 3 ? values.transpose(1, 2) : values};
  }
};

Blocks BlocksOf(const at::Tensor& sparse) {
  if (sparse.is_sparse()) {
    const at::Tensor indices = sparse._indices();
    return {indices.select(0, 0), indices.select(0, 1), sparse._values()};
  }
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(sparse);
  const at::Tensor indices = at::_convert_indices_from_csr_to_coo(
      compressed, plain, /*out_int32=*/false, /*transpose=*/!IsOfRows(sparse.layout()));
  return {indices.select(0, 0), indices.select(0, 1), sparse.values()};
}

// start + alpha · A @ dense, for the matrix of these blocks.
at::Tensor PlusBlocks(const at::Tensor& start, const Blocks& blocks, const at::Tensor& dense,
                      const at::Scalar& alpha) {
  const at::Tensor& values = blocks.values;
  if (values.dim() == 1) {
    return PlusRows(start, blocks.rows, blocks.columns, values, dense, alpha);
  }
  const at::ScalarType type = SumType(dense.scalar_type());
  const auto tiles = [type](const at::Tensor& rows, int64_t height) {
    return rows.to(type).unflatten(0, {rows.size(0) / height, height});
  };
  const at::Tensor terms =
      values.to(type).bmm(tiles(dense, values.size(2)).index_select(0, blocks.columns));
  return tiles(start, values.size(1))
      .index_add(0, blocks.rows, Times(terms, alpha))
      .flatten(0, 1)
      .to(dense.scalar_type());
}

void CheckMatrices(const char* op, int64_t rank, const at::Tensor& self, const at::Tensor& mat2) {
  CheckHere(op, {&self, &mat2});
  const bool first = self.layout() != at::kStrided, second = mat2.layout() != at::kStrided;
  TORCH_CHECK(first != second && !mat2.is_sparse(), "torch_spmd: ", op,
              " takes a sparse and a dense matrix, in this order; got ",
              first ? "two sparse ones" : "a dense one first",
              "; call .to_dense() on the other one, or transpose the product");
  const at::Tensor& sparse = first ? self : mat2;
  TORCH_CHECK(sparse.dense_dim() == 0 && self.dim() == rank && mat2.dim() == rank, op,
              ": expected matrices without dense dimensions; got shapes ", self.sizes(), " and ",
              mat2.sizes(), ", and ", sparse.dense_dim(), " dense dimensions");
  TORCH_CHECK(self.size(-1) == mat2.size(-2) && (rank == 2 || self.size(0) == mat2.size(0)), op,
              ": shapes ", self.sizes(), " and ", mat2.sizes(), " cannot be multiplied");
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), op,
              ": expected matrices of one dtype; got ", self.scalar_type(), " and ",
              mat2.scalar_type());
}

// start + alpha · mat1 @ mat2; zeros if there is no start.
at::Tensor PlusProduct(const at::Tensor& start, const at::Tensor& mat1, const at::Tensor& mat2,
                       const at::Scalar& alpha) {
  const bool first = mat1.layout() != at::kStrided;
  const at::Tensor& dense = first ? mat2 : mat1;
  const at::Tensor from =
      start.defined() ? start : at::zeros({mat1.size(0), mat2.size(1)}, dense.options());
  if (first) return PlusBlocks(from, BlocksOf(mat1), mat2, alpha);
  return PlusBlocks(from.t(), BlocksOf(mat2).Transposed(), mat1.t(), alpha).t().contiguous();
}

at::Tensor AddMatrixProduct(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                            const at::Scalar& beta, const at::Scalar& alpha) {
  CheckMatrices("addmm", 2, mat1, mat2);
  CheckHere("addmm", {&mat1, &self});
  const at::Tensor start =
      beta.equal(0) ? at::Tensor() : Times(self.expand({mat1.size(0), mat2.size(1)}), beta);
  return PlusProduct(start, mat1, mat2, alpha);
}
at::Tensor& AddMatrixProductInPlace(at::Tensor& self, const at::Tensor& mat1,
                                    const at::Tensor& mat2, const at::Scalar& beta,
                                    const at::Scalar& alpha) {
  return Into(self, AddMatrixProduct(self, mat1, mat2, beta, alpha));
}
at::Tensor& AddMatrixProductInto(const at::Tensor& self, const at::Tensor& mat1,
                                 const at::Tensor& mat2, const at::Scalar& beta,
                                 const at::Scalar& alpha, at::Tensor& out) {
  return Into(out, AddMatrixProduct(self, mat1, mat2, beta, alpha));
}

at::Tensor MatrixProduct(const at::Tensor& self, const at::Tensor& mat2) {
  CheckMatrices("mm", 2, self, mat2);
  return PlusProduct(/*start=*/{}, self, mat2, 1);
}
at::Tensor& MatrixProductInto(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return Into(out, MatrixProduct(self, mat2));
}
at::Tensor& AddVectorProductInto(const at::Tensor& self, const at::Tensor& mat,
                                 const at::Tensor& vec, const at::Scalar& beta,
                                 const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor start = self.dim() == 1 ? self.unsqueeze(1) : self;
  return Into(out, AddMatrixProduct(start, mat, vec.unsqueeze(1), beta, alpha).squeeze(1));
}

// A batch is one product of matrices whose rows are numbered on: row i of matrix b of n rows is
// row b · n + i.
at::Tensor BatchedProduct(const at::Tensor& self, const at::Tensor& mat2) {
  CheckMatrices("bmm", 3, self, mat2);
  const at::Tensor indices = self._indices(), batch = indices.select(0, 0);
  const int64_t rows = self.size(1), columns = self.size(2);
  const at::Tensor start = at::zeros({self.size(0) * rows, mat2.size(2)}, mat2.options());
  return PlusRows(start, batch.mul(rows).add(indices.select(0, 1)),
                  batch.mul(columns).add(indices.select(0, 2)), self._values(),
                  mat2.reshape({-1, mat2.size(2)}), 1)
      .view({self.size(0), rows, mat2.size(2)});
}
at::Tensor& BatchedProductInto(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return Into(out, BatchedProduct(self, mat2));
}

// --- products at the places of a sparse matrix ---

// For each place of a matrix, the product of a row of `rows` and a row of `columns`: [n].
at::Tensor ProductsAt(const Blocks& places, const at::Tensor& rows, const at::Tensor& columns) {
  return rows.index_select(0, places.rows).mul(columns.index_select(0, places.columns)).sum(1);
}

// A matrix with the indices of `like`.
at::Tensor Csr(const at::Tensor& like, const at::Tensor& values) {
  return at::_sparse_compressed_tensor_unsafe(like.crow_indices().clone(),
                                              like.col_indices().clone(), values, like.sizes(),
                                              like.options().dtype(values.scalar_type()));
}

void CheckCsr(const char* op, const at::Tensor& self) {
  TORCH_CHECK(self.layout() == at::kSparseCsr && self.dim() == 2 && self.dense_dim() == 0, op,
              ": expected a matrix in CSR form without dense dimensions; got layout ",
              self.layout(), " and shape ", self.sizes());
}

at::Tensor SampledProduct(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                          const at::Scalar& beta, const at::Scalar& alpha) {
  CheckHere("sampled_addmm", {&self, &mat1, &mat2});
  CheckCsr("sampled_addmm", self);
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2 && mat1.size(1) == mat2.size(0) &&
                  self.size(0) == mat1.size(0) && self.size(1) == mat2.size(1),
              "sampled_addmm: shapes ", mat1.sizes(), " and ", mat2.sizes(),
              " cannot be multiplied to ", self.sizes());
  TORCH_CHECK(self.scalar_type() == mat1.scalar_type() && self.scalar_type() == mat2.scalar_type(),
              "sampled_addmm: expected matrices of one dtype; got ", self.scalar_type(), ", ",
              mat1.scalar_type(), " and ", mat2.scalar_type());
  const at::Tensor products = Times(ProductsAt(BlocksOf(self), mat1, mat2.t()), alpha);
  return Csr(self, beta.equal(0) ? products : products.add(self.values(), beta));
}
at::Tensor& SampledProductInto(const at::Tensor& self, const at::Tensor& mat1,
                               const at::Tensor& mat2, const at::Scalar& beta,
                               const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor result = SampledProduct(self, mat1, mat2, beta, alpha);
  out.resize_as_sparse_(result);
  return Into(out, result);
}

// --- products with another reduction than the sum ---

// How many values each row has, 1 for none.
at::Tensor CountsOf(const at::Tensor& csr, const at::TensorOptions& options) {
  return csr.crow_indices().diff().clamp_min(1).to(options).unsqueeze(1);
}

// [n], which value it is.
at::Tensor NumbersOf(const at::Tensor& values, const at::Tensor& like) {
  return at::arange(values.size(0), like.options());
}

bool IsExtreme(std::string_view reduce) { return reduce == "amax" || reduce == "amin"; }

// The reduced products, and for the gradient of amax and amin, which value it is that each comes
// from: the first one of equal ones, their number if a row has none.
std::tuple<at::Tensor, at::Tensor> ReducedProduct(const at::Tensor& self, const at::Tensor& other,
                                                  std::string_view reduce) {
  CheckCsr("sparse_mm_reduce", self);
  CheckMatrices("sparse_mm_reduce", 2, self, other);
  TORCH_CHECK(reduce == "sum" || reduce == "mean" || IsExtreme(reduce),
              "sparse_mm_reduce: reduce must be 'sum', 'mean', 'amax' or 'amin'; got '", reduce,
              "'");
  const Blocks each = BlocksOf(self);
  at::Tensor out = at::zeros({self.size(0), other.size(1)}, other.options());
  at::Tensor from = at::empty({0}, each.columns.options());
  if (!IsExtreme(reduce)) {
    out = PlusBlocks(out, each, other, 1);
    return {reduce == "mean" ? out.div(CountsOf(self, out.options())) : out, from};
  }
  const at::Tensor terms = other.index_select(0, each.columns).mul(each.values.unsqueeze(1));
  out = out.index_reduce(0, each.rows, terms, reduce, /*include_self=*/false);
  if (at::GradMode::is_enabled() && (self.requires_grad() || other.requires_grad())) {
    const int64_t none = each.values.size(0);
    const at::Tensor numbers = NumbersOf(each.values, each.rows).unsqueeze(1);
    const at::Tensor candidates =
        at::where(terms.eq(out.index_select(0, each.rows)), numbers, none);
    from = at::full(out.sizes(), none, each.rows.options())
               .index_reduce(0, each.rows, candidates, "amin");
  }
  return {out, from};
}

std::tuple<at::Tensor, at::Tensor> ReducedProductBackward(
    const at::Tensor& self, const at::Tensor& grad, const at::Tensor& other,
    std::string_view reduce, const at::Tensor& from, std::array<bool, 2> wanted) {
  const Blocks each = BlocksOf(self);
  // The gradient of each term.
  at::Tensor of_terms = (reduce == "mean" ? grad.div(CountsOf(self, grad.options())) : grad)
                            .index_select(0, each.rows);
  if (IsExtreme(reduce)) {
    const at::Tensor numbers = NumbersOf(each.values, each.rows).unsqueeze(1);
    of_terms = of_terms.mul(from.index_select(0, each.rows).eq(numbers));
  }
  at::Tensor of_self, of_other;
  if (wanted[0]) of_self = Csr(self, of_terms.mul(other.index_select(0, each.columns)).sum(1));
  if (wanted[1]) {
    of_other =
        at::zeros_like(other).index_add(0, each.columns, of_terms.mul(each.values.unsqueeze(1)));
  }
  return {of_self, of_other};
}

}  // namespace

void AddCompressedProducts(torch::Library& library) {
  library.impl("_sparse_mm_reduce_impl", TORCH_FN(ReducedProduct));
  library.impl("_sparse_mm_reduce_impl_backward", TORCH_FN(ReducedProductBackward));
  library.impl("addmm", TORCH_FN(AddMatrixProduct));
  library.impl("addmm.out", TORCH_FN(AddMatrixProductInto));
  library.impl("addmm_", TORCH_FN(AddMatrixProductInPlace));
  library.impl("addmv.out", TORCH_FN(AddVectorProductInto));
  library.impl("mm", TORCH_FN(MatrixProduct));
  library.impl("mm.out", TORCH_FN(MatrixProductInto));
  library.impl("sparse_sampled_addmm", TORCH_FN(SampledProduct));
  library.impl("sparse_sampled_addmm.out", TORCH_FN(SampledProductInto));
}

void AddSparseProducts(torch::Library& library) {
  library.impl("addmm", TORCH_FN(AddMatrixProduct));
  library.impl("addmm.out", TORCH_FN(AddMatrixProductInto));
  library.impl("addmm_", TORCH_FN(AddMatrixProductInPlace));
  library.impl("bmm", TORCH_FN(BatchedProduct));
  library.impl("bmm.out", TORCH_FN(BatchedProductInto));
}

}  // namespace spmd::trace
