// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/reach.h"

#include <utility>
#include <vector>

namespace spmd::partition {
namespace {

using propagate::Cut;
using propagate::NodeFactors;

// Adds to each factor the axes that no factor has yet.
void Unite(Cut& cut, const Cut& more) {
  AxisMask used = 0;
  for (const auto& shard : cut) used |= MaskOf(shard.axes);
  for (size_t f = 0; f < cut.size(); ++f) {
    if (!cut[f].axes.empty() || (MaskOf(more[f].axes) & used)) continue;
    cut[f] = more[f];
    used |= MaskOf(more[f].axes);
  }
}

}  // namespace

Sharding Reach::Of(ir::ValueId v) const {
  const auto it = beyond_.find(v);
  return it != beyond_.end() ? it->second : graph_.value(v).annotation->sharding.Reduced();
}

Cut Reach::CutFrom(const ir::Node& node, const NodeFactors& nf, int grid,
                   absl::Span<const Sharding> shardings) const {
  Cut cut(nf->factors.size());
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ir::ValueId v = node.operands[k];
    if (v == ir::kNoValue || GridOf(v) != grid || shardings[k].DimAxes() == 0) continue;
    Unite(cut, propagate::CutOf(*nf, nf->operands[k], graph_.type(v).dims, shardings[k],
                                graph_.grid(grid)));
  }
  for (size_t f = 0; f < cut.size(); ++f) {
    if (nf->factors[f].whole) cut[f] = {};
  }
  return cut;
}

void Reach::Note(ir::ValueId v, int grid, const std::optional<Sharding>& comes) {
  if (!comes || GridOf(v) != grid) return;
  Sharding known = graph_.value(v).annotation->sharding.Reduced();
  bool more = false;
  for (size_t d = 0; d < known.dims.size(); ++d) {
    const DimSharding& dim = comes->dims[d];
    if (!known.dims[d].axes.empty() || dim.axes.empty()) continue;
    if (MaskOf(dim.axes) & known.DimAxes()) continue;
    known.dims[d] = dim;
    more = true;
  }
  if (more) beyond_[v] = std::move(known);
}

void Reach::NoteResults(const ir::Node& node, const NodeFactors& nf) {
  std::vector<Sharding> shardings(node.operands.size());
  int grid = -1;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] == ir::kNoValue) continue;
    shardings[k] = Of(node.operands[k]);
    if (grid < 0 && IsBeyond(node.operands[k])) grid = GridOf(node.operands[k]);
  }
  if (grid < 0) return;
  const Cut cut = CutFrom(node, nf, grid, shardings);
  for (int r = 0; r < node.num_results; ++r) {
    const ir::ValueId v = node.first_result + r;
    Note(
        v, grid,
        propagate::ShardingUnder(*nf, nf->results[r], graph_.type(v).dims, cut, graph_.grid(grid)));
  }
}

}  // namespace spmd::partition
