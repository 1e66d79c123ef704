// SPDX-License-Identifier: Apache-2.0
// Ops that read or write along one dimension at places an index tensor names. That dimension of the
// indexed tensor is whole: any index may ask for any of it. The index's own dimension passes in
// reading ops, is reduced where writes add up, and is whole where the order of writes decides.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// gather(self, index), by "dim": along other dimensions the index may be shorter than self.
absl::StatusOr<OpFactors> GatherFactors(const OpCall& call);
// index_select(self, index).
absl::StatusOr<OpFactors> IndexSelectFactors(const OpCall& call);

// scatter(self, index[, src]): likewise. ScatterAdd: index dimensions along "dim" are reduced, and
// self is added once.
absl::StatusOr<OpFactors> ScatterFactors(const OpCall& call);
absl::StatusOr<OpFactors> ScatterAddFactors(const OpCall& call);

// index_copy(self, index, source), index_fill(self, index[, value]), index_add(self, index,
// source).
absl::StatusOr<OpFactors> IndexCopyFactors(const OpCall& call);
absl::StatusOr<OpFactors> IndexAddFactors(const OpCall& call);

// take(self, index): all of self is whole, the index passes.
absl::StatusOr<OpFactors> TakeFactors(const OpCall& call);

// index.Tensor(self, indices…) and index_put(self, indices…, values): dimensions of self that no
// index stands for pass; the broadcast dims of the indices are dims of the result of index.Tensor,
// and are reduced in an accumulating index_put. Masks make everything whole.
absl::StatusOr<OpFactors> IndexFactors(const OpCall& call);
absl::StatusOr<OpFactors> IndexPutFactors(const OpCall& call);

}  // namespace spmd::rules
