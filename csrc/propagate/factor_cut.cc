// SPDX-License-Identifier: Apache-2.0
#include "csrc/propagate/factor_cut.h"

namespace spmd::propagate {
namespace {

// The dimension of an operand that a factor of another size runs over through a window. Each of the
// two is cut in its own default shards: chunks of one mean nothing to the other.
bool IsWindow(const rules::OpFactors& factors, const rules::DimFactors& dim, int64_t extent) {
  return dim.size() == 1 && factors.factors[dim[0]].size != extent;
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
    cut[dim[0]] = {sharding.axes, 0};
    return;
  }
  const int64_t shards = grid.size(sharding.axes);
  const int64_t chunk = sharding.chunk != 0 ? sharding.chunk : CeilDiv(extent, shards);
  // Uneven cuts, and chunks that are not the default, can only lie in the major factor.
  const int64_t minor = MinorSize(factors, dim, 0);
  const int64_t major_size = factors.factors[dim[0]].size;
  if (dim.size() == 1 ||
      (chunk % minor == 0 && chunk / minor * shards >= major_size &&
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
    bool closed = false;  // a factor was left partly uncut: no minor one may be cut
    bool has_major = false;
    for (size_t k = 0; k < dim.size(); ++k) {
      const FactorShard& shard = cut[dim[k]];
      const rules::Factor& factor = factors.factors[dim[k]];
      const int64_t shards = grid.size(shard.axes);
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
    if (is_default || IsWindow(factors, dim, dims[d])) out.chunk = 0;
  }
  return sharding;
}

}  // namespace spmd::propagate
