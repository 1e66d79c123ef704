// SPDX-License-Identifier: Apache-2.0
// Ops that read or write at places an index tensor names. The dimension that is indexed is whole:
// any index may ask for any of it; or, in the ops of parts.h, every device sees to its part. The
// index's own dimension passes in reading ops, is reduced where writes add up, and is whole where
// the order of writes decides.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"
#include "csrc/rules/tables/call_factors.h"

namespace spmd::rules {

enum class IndexedDim { kWhole, kInParts };
// The rule of an op that adds to operand 0.
Rule Accumulates(Rule rule);
// A factor for an indexed dimension of `size`.
int AddIndexed(CallFactors& f, int64_t size, IndexedDim indexed);

// gather(self, index), by "dim": along other dimensions the index may be shorter than self.
absl::StatusOr<OpFactors> GatherFactors(const OpCall& call, IndexedDim indexed);
// index_select(self, index).
absl::StatusOr<OpFactors> IndexSelectFactors(const OpCall& call);

// scatter(self, index[, src]): likewise. Where it `adds`, index dimensions along "dim" are reduced,
// and self is added once.
absl::StatusOr<OpFactors> ScatterFactors(const OpCall& call, IndexedDim indexed, bool adds);

// index_copy, index_add, index_reduce(self, index, source), index_fill(self, index[, value]).
absl::StatusOr<OpFactors> IndexWriteFactors(const OpCall& call, IndexedDim indexed, bool adds);

// take(self, index): all of self is whole, the index passes. put(self, index, source): all is
// whole.
absl::StatusOr<OpFactors> TakeFactors(const OpCall& call);
absl::StatusOr<OpFactors> PutFactors(const OpCall& call);

// index.Tensor(self, indices…) and index_put(self, indices…, values): dimensions of self that no
// index stands for pass; the broadcast dims of the indices are dims of the result of index.Tensor,
// and are reduced in an accumulating index_put. Masks are whole, and so is what they stand for.
absl::StatusOr<OpFactors> IndexFactors(const OpCall& call, IndexedDim indexed);
absl::StatusOr<OpFactors> IndexPutFactors(const OpCall& call, IndexedDim indexed);
// Dims of the result of index.Tensor. Requires: no index is a mask.
Dims IndexedDims(const OpCall& call);

}  // namespace spmd::rules
