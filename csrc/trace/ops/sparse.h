// SPDX-License-Identifier: Apache-2.0
// Sparse tensors in coordinate form (COO) on the device.
//
//   s = sparse_coo_tensor([[0, 2], [1, 1]], [3., 4.], (3, 2), device="spmd")
//   s @ x   =   zeros(3, k).index_add(0, [0, 2], x.index_select(0, [1, 1]) * [3., 4.][:, None])
//
// A sparse tensor is PyTorch's own object, which holds two dense tensors of the device: indices
// [sparse_dim, nnz] and values [nnz, …]. It has no Buffer and no mark. Its ops are written in ops
// on the two, which are recorded, planned and sharded as all others are, so a mark on the values or
// on a dense operand counts. Most are PyTorch's own compositions, the same for every device; the
// table in sparse.cc lists them. Those for which PyTorch has one kernel for each device are in
// sparse_arithmetic.cc and sparse_products.cc.
//
// Only what needs the number of indices waits for a program: to_sparse, and coalesce of what is not
// known to be coalesced.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

namespace spmd::trace {

// Registers kernels for the key SparsePrivateUse1. Every other op raises NotImplementedError.
std::vector<c10::RegistrationHandleRAII> RegisterSparseKernels();

// Add the kernels of sparse_arithmetic.cc and sparse_products.cc to a library for that key.
void AddSparseArithmetic(torch::Library& library);
void AddSparseProducts(torch::Library& library);

}  // namespace spmd::trace
