// SPDX-License-Identifier: Apache-2.0
// index.Tensor and index_put: several index tensors at once, with the rules of NumPy.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/scatter.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// The shape of self[indices]: `lead` kept dimensions of self, the broadcast dims of the indices,
// then the other kept dimensions.
struct Indexed {
  std::vector<int> kept;  // dimensions of self without an index
  std::vector<int> replaced;
  int lead = 0;
  Dims broadcast;

  int rank() const { return static_cast<int>(kept.size() + broadcast.size()); }
  // The dimension of the result that is kept[i].
  int PlaceOfKept(int i) const { return i < lead ? i : i + static_cast<int>(broadcast.size()); }
};

// nullopt if an index is a mask, which may index several dimensions.
std::optional<Indexed> IndexedOf(const OpCall& call, int first, int count) {
  Indexed x;
  const int rank = call.operand(0).rank();
  for (int d = 0; d < rank; ++d) {
    const bool replaced = d < count && call.has(first + d);
    (replaced ? x.replaced : x.kept).push_back(d);
    if (!replaced) continue;
    const TensorType& index = call.operand(first + d);
    if (index.dtype == DType::kBool || index.dtype == DType::kU8) return std::nullopt;
    const int grow = index.rank() - static_cast<int>(x.broadcast.size());
    if (grow > 0) x.broadcast.insert(x.broadcast.begin(), grow, 1);
    const int shift = static_cast<int>(x.broadcast.size()) - index.rank();
    for (int i = 0; i < index.rank(); ++i) {
      if (index.dims[i] != 1) x.broadcast[shift + i] = index.dims[i];
    }
  }
  // The dims of adjacent indices take the place of the indexed dimensions; otherwise they come
  // first.
  const bool adjacent = !x.replaced.empty() && x.replaced.back() - x.replaced.front() + 1 ==
                                                   static_cast<int>(x.replaced.size());
  x.lead = adjacent ? x.replaced.front() : 0;
  if (x.replaced.empty()) x.lead = rank;
  return x;
}

// By dimension of self, the broadcast dimension that enumerates it, or -1. See batch_index.h.
std::vector<int64_t> BatchOf(const OpCall& call) {
  std::vector<int64_t> batch = call.attrs().GetIntsOr("batch", {});
  batch.resize(call.operand(0).rank(), -1);
  return batch;
}

absl::Status CheckBatch(const OpCall& call, const Indexed& x) {
  const std::vector<int64_t> batch = BatchOf(call);
  std::vector<bool> taken(x.broadcast.size(), false);
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    const int64_t at = batch[d];
    if (at < 0) continue;
    const bool indexed = std::find(x.replaced.begin(), x.replaced.end(), d) != x.replaced.end();
    if (!indexed || at >= static_cast<int64_t>(taken.size()) || taken[at] ||
        x.broadcast[at] != call.operand(0).dims[d]) {
      return absl::InvalidArgumentError(
          absl::StrCat(call.ToString(), ": no index numbers dimension ", d));
    }
    taken[at] = true;
  }
  return absl::OkStatus();
}

// Adds a factor per broadcast dimension over the indices, and returns the first. They are whole if
// `whole`, except those that enumerate a dimension.
int OverIndices(CallFactors& f, const OpCall& call, const Indexed& x, int first, bool whole) {
  int first_factor = -1;
  const std::vector<int64_t> batch = BatchOf(call);
  for (size_t at = 0; at < x.broadcast.size(); ++at) {
    const bool numbers =
        std::find(batch.begin(), batch.end(), static_cast<int64_t>(at)) != batch.end();
    const int factor = whole && !numbers ? f.AddWhole(x.broadcast[at]) : f.Add(x.broadcast[at]);
    if (first_factor < 0) first_factor = factor;
  }
  const int rank = static_cast<int>(x.broadcast.size());
  for (int d : x.replaced) {
    const TensorType& index = call.operand(first + d);
    for (int i = 0; i < index.rank(); ++i) {
      const int at = rank - index.rank() + i;
      if (index.dims[i] == x.broadcast[at]) f.OverOperand(first + d, i, first_factor + at);
    }
  }
  return first_factor;
}

// A mask indexes as many dimensions as it has. Everything is whole, since the number of true
// elements decides the shape.
absl::StatusOr<OpFactors> MaskedPutFactors(const OpCall& call) {
  CallFactors f(call);
  for (int k = 0; k < static_cast<int>(call.operands.size()); ++k) {
    for (int d = 0; call.has(k) && d < call.operand(k).rank(); ++d) {
      const int factor = f.AddWhole(call.operand(k).dims[d]);
      f.OverOperand(k, d, factor);
      if (k == 0) f.OverResult(d, factor);
    }
  }
  return f.Take();
}

}  // namespace

Dims IndexedDims(const OpCall& call) {
  const std::optional<Indexed> x =
      IndexedOf(call, /*first=*/1, static_cast<int>(call.operands.size()) - 1);
  SPMD_REQUIRE(x.has_value(), call.ToString(), ": a mask");
  Dims dims(x->rank());
  for (int i = 0; i < static_cast<int>(x->kept.size()); ++i) {
    dims[x->PlaceOfKept(i)] = call.operand(0).dims[x->kept[i]];
  }
  std::copy(x->broadcast.begin(), x->broadcast.end(), dims.begin() + x->lead);
  return dims;
}

absl::StatusOr<OpFactors> IndexFactors(const OpCall& call, IndexedDim indexed) {
  const int count = static_cast<int>(call.operands.size()) - 1;
  const std::optional<Indexed> x = IndexedOf(call, /*first=*/1, count);
  if (!x || x->rank() != call.results[0].rank()) return WholeFactors(call);
  SPMD_RETURN_IF_ERROR(CheckBatch(call, *x));
  CallFactors f(call);
  for (int i = 0; i < static_cast<int>(x->kept.size()); ++i) f.Pass(x->kept[i], x->PlaceOfKept(i));
  const std::vector<int64_t> batch = BatchOf(call);
  for (int d : x->replaced) {
    if (batch[d] < 0) f.OverOperand(0, d, AddIndexed(f, call.operand(0).dims[d], indexed));
  }
  const int first = OverIndices(f, call, *x, /*first=*/1, /*whole=*/false);
  for (int d : x->replaced) {
    if (batch[d] >= 0) f.OverOperand(0, d, first + static_cast<int>(batch[d]));
  }
  for (int i = 0; i < static_cast<int>(x->broadcast.size()); ++i) {
    f.OverResult(x->lead + i, first + i);
  }
  return f.Take();
}

absl::StatusOr<OpFactors> IndexPutFactors(const OpCall& call, IndexedDim indexed) {
  const int values = static_cast<int>(call.operands.size()) - 1;
  const std::optional<Indexed> x = IndexedOf(call, /*first=*/1, /*count=*/values - 1);
  if (!x) return MaskedPutFactors(call);
  if (call.operand(values).rank() > x->rank()) return WholeFactors(call);
  SPMD_RETURN_IF_ERROR(CheckBatch(call, *x));
  CallFactors f(call);
  std::vector<int> factor_at(x->rank());
  Dims dims(x->rank());
  for (int i = 0; i < static_cast<int>(x->kept.size()); ++i) {
    const int d = x->kept[i], at = x->PlaceOfKept(i);
    factor_at[at] = f.Pass(d, d);
    dims[at] = call.results[0].dims[d];
  }
  const std::vector<int64_t> batch = BatchOf(call);
  const auto over_self = [&](int d, int factor) {
    f.OverOperand(0, d, factor);
    f.OverResult(d, factor);
  };
  for (int d : x->replaced) {
    if (batch[d] < 0) over_self(d, AddIndexed(f, call.operand(0).dims[d], indexed));
  }
  // Sums may be sharded over any factor; of several values written to one element, the last one
  // must win.
  const bool accumulate = call.attrs().GetBoolOr("accumulate", false);
  const int first = OverIndices(f, call, *x, /*first=*/1, /*whole=*/!accumulate);
  for (int d : x->replaced) {
    if (batch[d] >= 0) over_self(d, first + static_cast<int>(batch[d]));
  }
  for (int i = 0; i < static_cast<int>(x->broadcast.size()); ++i) {
    factor_at[x->lead + i] = first + i;
    dims[x->lead + i] = x->broadcast[i];
  }
  const TensorType& v = call.operand(values);
  for (int i = 0; i < v.rank(); ++i) {
    const int at = x->rank() - v.rank() + i;
    if (v.dims[i] == dims[at]) f.OverOperand(values, i, factor_at[at]);
  }
  return f.Take();
}

}  // namespace spmd::rules
