// SPDX-License-Identifier: Apache-2.0
#include "csrc/propagate/factor_cut.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace spmd::propagate {
namespace {

// True if an operand's dimension of `extent` indices is read through a window: its only factor has
// another size.
bool IsWindow(const rules::OpFactors& factors, const rules::DimFactors& dim, int64_t extent) {
  return dim.size() == 1 && factors.factors[dim[0]].size != extent;
}

// The window through which `factor` reads a dimension of `extent` indices; null if there is none.
const rules::Window* WindowOf(const rules::OpFactors& factors, int factor, int64_t extent) {
  for (const rules::Window& w : factors.windows) {
    if (w.factor == factor && w.extent == factors.factors[factor].size && w.extent != extent) {
      return &w;
    }
  }
  return nullptr;
}

// How many indices of the window's dimension there are per index of its factor, as a fraction: {2,
// 1} for a stride of 2, {1, 2} for its transpose; {0, 1} where the window does not grow evenly.
std::pair<int64_t, int64_t> StrideOf(const rules::Window& window) {
  constexpr int64_t kFar = 720720;  // divisible by every number up to 16
  const int64_t inside = std::max<int64_t>(window.extent / 4, 1);
  const auto begin_at = [&](int64_t start) {
    Expr::Env env;
    env.start = [start](TensorRef, int) { return start; };
    env.size = [](TensorRef, int) { return int64_t{1}; };
    env.extent = [&](TensorRef, int) { return window.extent; };
    env.coord = [](int) { return int64_t{0}; };
    return window.begin.Evaluate(env);
  };
  // A part of a concatenation is clamped at its ends; in the middle it grows as the whole does.
  if (begin_at(3 * inside) - begin_at(2 * inside) == inside) return {1, 1};
  const int64_t grown = begin_at(kFar) - begin_at(0);
  if (grown <= 0) return {0, 1};
  const int64_t common = std::gcd(grown, kFar);
  return {grown / common, kFar / common};
}

// The chunk that keeps `n` indices over `shards` aligned with `extent` indices in shards of `chunk`
// (0: the default), where there are `times`/`over` of the former per index of the latter. Returns
// 0, the default chunk, where aligned tiles would be too unequal. Example: 1025 rows over 8 next to
// 1024 rows in chunks of 128 get chunks of 128 too, and the last shard has 129; by default the
// chunk would be 129, and the rows of the last tile would start 7 rows away. Evenly divided indices
// do not follow a default chunk of uneven ones.
int64_t AlignedChunk(int64_t n, int64_t shards, int64_t extent, int64_t chunk, int64_t times,
                     int64_t over) {
  constexpr double kUnequal = 1.05;
  const int64_t from = chunk != 0 ? chunk : CeilDiv(extent, shards);
  if (n == 0 || times == 0 || from * times % over != 0) return 0;
  if (n % shards == 0 && extent % shards != 0 && from == CeilDiv(extent, shards)) return 0;
  const int64_t aligned = from * times / over;
  const int64_t even = CeilDiv(n, shards);
  if (aligned == even || aligned == 0 || aligned * (shards - 1) >= n) return 0;
  const int64_t largest = std::max(aligned, n - aligned * (shards - 1));
  const int64_t bound = std::max(even, static_cast<int64_t>(kUnequal * n / shards));
  return largest <= bound ? aligned : 0;
}

// Product of the sizes of a dimension's factors after the first `k + 1`.
int64_t MinorSize(const rules::OpFactors& factors, const rules::DimFactors& dim, size_t k) {
  int64_t n = 1;
  for (size_t i = k + 1; i < dim.size(); ++i) n *= factors.factors[dim[i]].size;
  return n;
}

void DealDimension(const rules::OpFactors& factors, const rules::DimFactors& dim, int64_t extent,
                   const DimSharding& sharding, const Grid& grid, Cut& cut) {
  if (dim.empty() || sharding.axes.empty()) return;
  if (IsWindow(factors, dim, extent)) {
    int64_t chunk = 0;
    if (const rules::Window* w = WindowOf(factors, dim[0], extent)) {
      const auto [times, over] = StrideOf(*w);
      if (times != 0) {
        chunk = AlignedChunk(factors.factors[dim[0]].size, grid.size(sharding.axes), extent,
                             sharding.chunk, over, times);
      }
    }
    cut[dim[0]] = {sharding.axes, chunk};
    return;
  }
  const int64_t shards = grid.size(sharding.axes);
  const int64_t chunk = sharding.chunk != 0 ? sharding.chunk : CeilDiv(extent, shards);
  // Uneven shards and chunks other than the default are only possible in the major factor.
  const int64_t minor = MinorSize(factors, dim, 0);
  const int64_t major_size = factors.factors[dim[0]].size;
  if (dim.size() == 1 ||
      (chunk % minor == 0 && chunk / minor * (shards + (sharding.chunk != 0)) >= major_size &&
       (extent % shards != 0 || sharding.chunk != 0 || major_size % shards == 0))) {
    FactorShard shard{sharding.axes, chunk / minor};
    if (shard.chunk == CeilDiv(major_size, shards)) shard.chunk = 0;
    cut[dim[0]] = shard;
    return;
  }
  if (sharding.chunk != 0 && sharding.chunk != CeilDiv(extent, shards)) return;
  size_t k = 0;
  int64_t left = major_size;
  for (AxisId axis : sharding.axes) {
    while (left == 1 && k + 1 < dim.size()) left = factors.factors[dim[++k]].size;
    if (left % grid.size(axis) != 0) return;
    left /= grid.size(axis);
    cut[dim[k]].axes.push_back(axis);
  }
}

}  // namespace

Cut CutOf(const rules::OpFactors& factors, const rules::TensorFactors& tensor, const Dims& dims,
          const Sharding& sharding, const Grid& grid) {
  Cut cut(factors.factors.size());
  for (size_t d = 0; d < tensor.size(); ++d) {
    DealDimension(factors, tensor[d], dims[d], sharding.dims[d], grid, cut);
  }
  return cut;
}

std::optional<Sharding> ShardingUnder(const rules::OpFactors& factors,
                                      const rules::TensorFactors& tensor, const Dims& dims,
                                      const Cut& cut, const Grid& grid) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(dims.size()));
  AxisMask used = 0;
  for (size_t d = 0; d < tensor.size(); ++d) {
    const rules::DimFactors& dim = tensor[d];
    DimSharding& out = sharding.dims[d];
    bool closed = false;  // a factor was not fully split, so no minor factor may be sharded
    bool has_major = false;
    for (size_t k = 0; k < dim.size(); ++k) {
      const FactorShard& shard = cut[dim[k]];
      const rules::Factor& factor = factors.factors[dim[k]];
      const int64_t shards = shard.axes.empty() ? 1 : grid.size(shard.axes);
      if (!shard.axes.empty()) {
        if (closed || (MaskOf(shard.axes) & used)) return std::nullopt;
        const int64_t chunk = shard.chunk != 0 ? shard.chunk : CeilDiv(factor.size, shards);
        const bool even = chunk * shards == factor.size;
        if (has_major && !even) return std::nullopt;
        if (!even && chunk % factor.granularity != 0) return std::nullopt;
        if (even && factor.granularity > 1 && chunk % factor.granularity != 0) return std::nullopt;
        used |= MaskOf(shard.axes);
        out.axes.insert(out.axes.end(), shard.axes.begin(), shard.axes.end());
        out.chunk = chunk * MinorSize(factors, dim, k);
        has_major = true;
      }
      if (shards != factor.size) closed = true;
    }
    const bool is_default = out.chunk == CeilDiv(dims[d], grid.size(out.axes));
    if (is_default) out.chunk = 0;
    if (IsWindow(factors, dim, dims[d]) && !out.axes.empty()) {
      out.chunk = 0;
      if (const rules::Window* w = WindowOf(factors, dim[0], dims[d])) {
        const auto [times, over] = StrideOf(*w);
        const FactorShard& shard = cut[dim[0]];
        out.chunk =
            AlignedChunk(dims[d], grid.size(shard.axes), w->extent, shard.chunk, times, over);
      }
    }
  }
  return sharding;
}

void CutBorder(const ir::Node& node, const rules::OpFactors& factors, Cut& cut) {
  if (node.border == nullptr) return;
  const rules::TensorFactors& global =
      node.border->enters ? factors.operands[0] : factors.results[0];
  for (size_t d = 0; d < global.size(); ++d) {
    const AxisList& axes = node.border->sharding.dims[d].axes;
    if (!axes.empty() && !global[d].empty()) cut[global[d][0]] = {axes};
  }
}

}  // namespace spmd::propagate
