// SPDX-License-Identifier: Apache-2.0
// Ops that read or write at the places that an index tensor names. The indexed dimension is whole,
// since any index may refer to any element; or, in the ops of parts.h, every device handles the
// elements that it holds. The index's own dimensions pass in reads, are reduced where writes add
// up, and are whole where the order of writes matters.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/row.h"
#include "csrc/rules/tables/call_factors.h"

namespace spmd::rules {

enum class IndexedDim { kWhole, kInParts };
// `row` for an op that adds to operand 0.
constexpr Row Accumulates(const Row& row) { return row.AddedOnce({0}); }
// Adds a factor for an indexed dimension of `size`.
int AddIndexed(CallFactors& f, int64_t size, IndexedDim indexed);

// gather(self, index) along "dim". Along other dimensions the index may be shorter than self.
absl::StatusOr<OpFactors> GatherFactors(const OpCall& call, IndexedDim indexed);
// index_select(self, index).
absl::StatusOr<OpFactors> IndexSelectFactors(const OpCall& call);

// scatter(self, index[, src]), likewise. If it `adds`, index dimensions along "dim" are reduced,
// and self is added once.
absl::StatusOr<OpFactors> ScatterFactors(const OpCall& call, IndexedDim indexed, bool adds);

// index_copy, index_add, index_reduce(self, index, source), index_fill(self, index[, value]).
absl::StatusOr<OpFactors> IndexWriteFactors(const OpCall& call, IndexedDim indexed, bool adds);

// take(self, index): self is whole, the index passes. put(self, index, source): everything is
// whole.
absl::StatusOr<OpFactors> TakeFactors(const OpCall& call);
absl::StatusOr<OpFactors> PutFactors(const OpCall& call);

// index.Tensor(self, indices…) and index_put(self, indices…, values). Dimensions of self that are
// not indexed pass. The broadcast dims of the indices are dims of the result of index.Tensor, and
// are reduced in an accumulating index_put. Masks and the dimensions that they index are whole.
absl::StatusOr<OpFactors> IndexFactors(const OpCall& call, IndexedDim indexed);
absl::StatusOr<OpFactors> IndexPutFactors(const OpCall& call, IndexedDim indexed);
// The dims of the result of index.Tensor.
// Requires: no index is a mask.
Dims IndexedDims(const OpCall& call);

}  // namespace spmd::rules
