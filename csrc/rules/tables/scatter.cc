// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/scatter.h"

#include <algorithm>

#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// Lays a factor over dimension d of operand k, of which the op uses the first `size` indices.
void OverPrefix(CallFactors& f, int k, int d, int factor, int64_t have, int64_t factor_size,
                int64_t size) {
  if (have == factor_size && size == factor_size) {
    f.OverOperand(k, d, factor);
  } else if (size > 0) {
    const ExprInterval shard = WindowShard();
    f.OverWindow(
        k, d, factor,
        size < factor_size ? ExprInterval{Min(shard.begin, size), Min(shard.end, size)} : shard);
  }
}

}  // namespace

int AddIndexed(CallFactors& f, int64_t size, IndexedDim indexed) {
  return indexed == IndexedDim::kWhole ? f.AddWhole(size) : f.Add(size);
}

absl::StatusOr<OpFactors> ScatterFactors(const OpCall& call, IndexedDim indexed, bool adds) {
  const TensorType& self = call.operand(0);
  const TensorType& index = call.operand(1);
  const bool has_src = call.has(2);
  if (index.rank() != self.rank() || (has_src && call.operand(2).rank() != self.rank())) {
    return WholeFactors(call);  // scalars in place of vectors of one element
  }
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", self.rank());
  for (int d = 0; d < self.rank(); ++d) {
    const int64_t n = self.dims[d], m = index.dims[d];
    const int factor = d == dim ? AddIndexed(f, n, indexed) : f.Add(n);
    f.OverOperand(0, d, factor);
    f.OverResult(d, factor);
    if (d != dim) {
      OverPrefix(f, 1, d, factor, m, n, m);
      if (has_src) OverPrefix(f, 2, d, factor, call.operand(2).dims[d], n, m);
      continue;
    }
    const int indices = adds ? f.Add(m) : f.AddWhole(m);
    f.OverOperand(1, d, indices);
    if (!has_src) continue;
    if (adds) {
      OverPrefix(f, 2, d, indices, call.operand(2).dims[d], m, m);
    } else {
      f.OverOperand(2, d, f.AddWhole(call.operand(2).dims[d]));
    }
  }
  return f.Take();
}

absl::StatusOr<OpFactors> IndexWriteFactors(const OpCall& call, IndexedDim indexed, bool adds) {
  const TensorType& self = call.operand(0);
  const bool has_source = call.has(2) && call.operand(2).rank() == self.rank();
  if (self.rank() == 0 || call.operand(1).rank() != 1 ||
      (call.has(2) && !has_source && call.operand(2).rank() != 0)) {
    return WholeFactors(call);
  }
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", self.rank());
  for (int d = 0; d < self.rank(); ++d) {
    const int64_t size = self.dims[d];
    const int factor = d == dim ? AddIndexed(f, size, indexed) : f.Add(size);
    f.OverOperand(0, d, factor);
    f.OverResult(d, factor);
    if (d != dim) {
      if (has_source) f.OverOperand(2, d, factor);
      continue;
    }
    const int64_t n = call.operand(1).dims[0];
    const int indices = adds ? f.Add(n) : f.AddWhole(n);
    f.OverOperand(1, 0, indices);
    if (has_source) f.OverOperand(2, d, indices);
  }
  return f.Take();
}

absl::StatusOr<OpFactors> GatherFactors(const OpCall& call, IndexedDim indexed) {
  const TensorType& self = call.operand(0);
  const TensorType& index = call.operand(1);
  if (index.rank() != self.rank()) return WholeFactors(call);
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", self.rank());
  for (int d = 0; d < self.rank(); ++d) {
    const int64_t m = index.dims[d];
    const int factor = f.Add(m);
    f.OverOperand(1, d, factor);
    f.OverResult(d, factor);
    if (d == dim) {
      f.OverOperand(0, d, AddIndexed(f, self.dims[d], indexed));
    } else {
      OverPrefix(f, 0, d, factor, self.dims[d], m, m);
    }
  }
  return f.Take();
}

absl::StatusOr<OpFactors> IndexSelectFactors(const OpCall& call) {
  const TensorType& self = call.operand(0);
  CallFactors f(call);
  if (self.rank() == 0) return f.Take();
  const int64_t dim = call.Dim("dim", self.rank());
  for (int d = 0; d < self.rank(); ++d) {
    if (d != dim) {
      f.Pass(d, d);
      continue;
    }
    f.OverOperand(0, d, f.AddWhole(self.dims[d]));
    if (call.operand(1).rank() == 0) continue;
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverOperand(1, 0, factor);
    f.OverResult(d, factor);
  }
  return f.Take();
}

absl::StatusOr<OpFactors> TakeFactors(const OpCall& call) {
  CallFactors f(call);
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    f.OverOperand(0, d, f.AddWhole(call.operand(0).dims[d]));
  }
  for (int d = 0; d < call.operand(1).rank(); ++d) {
    const int factor = f.Add(call.operand(1).dims[d]);
    f.OverOperand(1, d, factor);
    f.OverResult(d, factor);
  }
  return f.Take();
}

absl::StatusOr<OpFactors> PutFactors(const OpCall& call) {
  CallFactors f(call);
  for (int k = 0; k < 3; ++k) {
    for (int d = 0; d < call.operand(k).rank(); ++d) {
      const int factor = f.AddWhole(call.operand(k).dims[d]);
      f.OverOperand(k, d, factor);
      if (k == 0) f.OverResult(d, factor);
    }
  }
  return f.Take();
}

}  // namespace spmd::rules
