// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/gradient_layouts.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "csrc/cost/tile.h"

namespace spmd::partition {

namespace {

// Whether `from`, once it is reduced, is cut into the shards of `to` without another send: each
// device's shard of `to` lies within its shard of `from`.
bool Refines(const TensorType& type, const Grid& grid, const Sharding& from, const Sharding& to) {
  for (int d = 0; d < from.rank(); ++d) {
    const DimSharding &coarse = from.dims[d], &fine = to.dims[d];
    if (coarse.axes.empty()) continue;
    if (coarse.axes.size() > fine.axes.size() ||
        !std::equal(coarse.axes.begin(), coarse.axes.end(), fine.axes.begin())) {
      return false;
    }
    const int64_t parts = grid.size(fine.axes) / grid.size(coarse.axes);
    if (cost::EffectiveChunk(coarse, type.dims[d], grid) !=
        parts * cost::EffectiveChunk(fine, type.dims[d], grid)) {
      return false;
    }
  }
  return true;
}

}  // namespace

GradientLayouts::GradientLayouts(const ir::Graph& graph)
    : graph_(graph), wish_of_(graph.num_values(), -1) {
  absl::flat_hash_map<TensorType, int> wish_of_type;
  for (const ir::Output& output : graph.outputs()) {
    const ir::NodeId node = graph.value(output.value).producer;
    if (output.becomes != ir::kNoValue || node == ir::kNoNode || graph.node(node).task == 0 ||
        graph.value(output.value).manual != 0) {
      continue;
    }
    const auto [at, is_new] =
        wish_of_type.try_emplace(graph.type(output.value), static_cast<int>(wishes_.size()));
    if (is_new) wishes_.emplace_back();
    wish_of_[output.value] = at->second;
  }
  if (wish_of_type.empty()) return;
  std::vector<bool> differ(wishes_.size());
  for (const ir::ValueId v : graph.inputs()) {
    const auto found = wish_of_type.find(graph.type(v));
    if (found == wish_of_type.end() || graph.value(v).manual != 0) continue;
    const ir::Annotation& annotation = *graph.value(v).annotation;
    const Sharding sharding = annotation.sharding.Closed().Reduced();
    Wish& wish = wishes_[found->second];
    if (wish.shardings.empty()) {
      wish.grid = annotation.grid;
    } else if (wish.grid != annotation.grid ||
               wish.shardings.front().DimAxes() != sharding.DimAxes()) {
      differ[found->second] = true;
    }
    if (std::find(wish.shardings.begin(), wish.shardings.end(), sharding) == wish.shardings.end()) {
      wish.shardings.push_back(sharding);
    }
  }
  for (size_t w = 0; w < wishes_.size(); ++w) {
    std::vector<Sharding>& shardings = wishes_[w].shardings;
    if (differ[w] || (!shardings.empty() && shardings.front().IsReplicated())) shardings.clear();
  }
}

absl::Span<const Sharding> GradientLayouts::Of(const ir::Output& output, int grid) const {
  const int w = wish_of_[output.value];
  if (w < 0 || output.becomes != ir::kNoValue || wishes_[w].grid != grid) return {};
  return wishes_[w].shardings;
}

Sharding GradientLayouts::Leaving(const ir::Output& output, const Sharding& made, int grid) const {
  const TensorType& type = graph_.type(output.value);
  const Sharding as_made = made.Reduced();
  for (const Sharding& wish : Of(output, grid)) {
    if (Refines(type, graph_.grid(grid), as_made, wish)) return wish;
  }
  return as_made;
}

}  // namespace spmd::partition
