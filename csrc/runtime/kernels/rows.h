// SPDX-License-Identifier: Apache-2.0
// IndexPart and IndexPutPart (kernels.h) for each of `blocks` equal parts of dimension `dim` of
// `self`, with all indices each time. The dimension of the indices holds what the blocks read, or
// what is written to them, one block after the other.
#pragma once

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {

Tensor IndexRows(const Tensor& self, const c10::List<OptionalTensor>& indices, IntArrayRef first,
                 IntArrayRef size, bool may_be_negative, int64_t dim, int64_t blocks);
Tensor IndexPutRows(const Tensor& self, const c10::List<OptionalTensor>& indices,
                    const Tensor& values, bool accumulate, IntArrayRef first, IntArrayRef size,
                    bool may_be_negative, int64_t dim, int64_t blocks);

// Row r of dimension `dim` in the block of index list[r] and zeros in the other blocks, one block
// after the other; and its inverse.
Tensor RowsApart(const Tensor& rows, const Tensor& list, int64_t dim, int64_t size, int64_t blocks);
Tensor RowsTogether(const Tensor& rows, const Tensor& list, int64_t dim, int64_t size,
                    int64_t blocks);

}  // namespace spmd::runtime::kernels
