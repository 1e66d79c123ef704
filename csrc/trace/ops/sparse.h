// SPDX-License-Identifier: Apache-2.0
// Sparse tensors on the device: in coordinate form (COO), and compressed (CSR, CSC, BSR, BSC).
//
//   s = sparse_coo_tensor([[0, 2], [1, 1]], [3., 4.], (3, 2), device="spmd")
//   s @ x   =   zeros(3, k).index_add(0, [0, 2], x.index_select(0, [1, 1]) * [3., 4.][:, None])
//
// A sparse tensor is PyTorch's own object, which holds dense tensors of the device: indices
// [sparse_dim, nnz] and values [nnz, …], or, compressed, where each row starts, the columns and the
// values. It has no Buffer and no mark. Its ops are written in ops on these, which are recorded,
// planned and sharded as all others are, so a mark on the values or on a dense operand counts. Most
// are PyTorch's own compositions, the same for every device; sparse.cc says which. Those for which
// PyTorch has one kernel for each device are in sparse_arithmetic.cc, sparse_compressed.cc and
// sparse_products.cc.
//
// Only what needs the number of indices waits for a program: to_sparse, to_sparse_csr, …, and
// coalesce of what is not known to be coalesced.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

namespace spmd::trace {

// Registers kernels for the keys SparsePrivateUse1 and SparseCsrPrivateUse1. Every other op raises
// NotImplementedError.
std::vector<c10::RegistrationHandleRAII> RegisterSparseKernels();

// Add the kernels of the other sources to a library for the first key.
void AddSparseArithmetic(torch::Library& library);
void AddSparseProducts(torch::Library& library);
// The same for the second key.
void AddCompressed(torch::Library& library);
void AddCompressedProducts(torch::Library& library);

}  // namespace spmd::trace
