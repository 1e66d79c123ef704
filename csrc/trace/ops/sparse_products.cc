// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices with dense ones.
#include <ATen/ops/zeros.h>

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

void CheckMatrices(const char* op, int64_t rank, const at::Tensor& sparse,
                   const at::Tensor& dense) {
  CheckHere(op, {&sparse, &dense});
  TORCH_CHECK(sparse.is_sparse() && !dense.is_sparse(), "torch_spmd: ", op,
              " takes a sparse and a dense matrix, in this order; got ",
              sparse.is_sparse() ? "two sparse ones" : "a dense one first",
              "; call .to_dense() on the other one, or transpose the product");
  TORCH_CHECK(sparse.dense_dim() == 0 && sparse.dim() == rank && dense.dim() == rank, op,
              ": expected matrices without dense dimensions; got shapes ", sparse.sizes(), " and ",
              dense.sizes(), ", and ", sparse.dense_dim(), " dense dimensions");
  TORCH_CHECK(sparse.size(-1) == dense.size(-2) && (rank == 2 || sparse.size(0) == dense.size(0)),
              op, ": shapes ", sparse.sizes(), " and ", dense.sizes(), " cannot be multiplied");
  TORCH_CHECK(sparse.scalar_type() == dense.scalar_type(), op,
              ": expected matrices of one dtype; got ", sparse.scalar_type(), " and ",
              dense.scalar_type());
}

at::Tensor AddMatrixProduct(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                            const at::Scalar& beta, const at::Scalar& alpha) {
  CheckMatrices("addmm", 2, mat1, mat2);
  CheckHere("addmm", {&mat1, &self});
  const std::vector<int64_t> sizes = {mat1.size(0), mat2.size(1)};
  const at::Tensor start =
      beta.equal(0) ? at::zeros(sizes, mat2.options()) : Times(self.expand(sizes), beta);
  const at::Tensor indices = mat1._indices();
  return PlusRows(start, indices.select(0, 0), indices.select(0, 1), mat1._values(), mat2, alpha);
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

}  // namespace

void AddSparseProducts(torch::Library& library) {
  library.impl("addmm", TORCH_FN(AddMatrixProduct));
  library.impl("addmm.out", TORCH_FN(AddMatrixProductInto));
  library.impl("addmm_", TORCH_FN(AddMatrixProductInPlace));
  library.impl("bmm", TORCH_FN(BatchedProduct));
  library.impl("bmm.out", TORCH_FN(BatchedProductInto));
}

}  // namespace spmd::trace
