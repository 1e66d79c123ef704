// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/placement.h"

#include <utility>

namespace spmd::runtime {

Placement::Placement(Layout layout, bool per_position, std::vector<std::vector<Interval>> intervals,
                     int64_t devices_per_process, std::vector<std::vector<Interval>> orders)
    : layout_(std::move(layout)),
      per_position_(per_position),
      devices_per_process_(devices_per_process),
      intervals_(std::move(intervals)),
      orders_(std::move(orders)) {
  const int r = layout_.rank();
  intervals_.resize(r);
  orders_.resize(r);
  windowed_.resize(r);
  stride_.resize(r);
  num_terms_ = grid().size(sharding().unreduced);
  int64_t stride = num_terms_;
  for (int d = r - 1; d >= 0; --d) {
    windowed_[d] = !intervals_[d].empty();
    if (!windowed_[d]) {
      for (int64_t i = 0; i < layout_.num_shards(d); ++i) {
        intervals_[d].push_back(layout_.ShardInterval(d, i));
      }
    }
    stride_[d] = stride;
    stride *= num_shards(d);
  }

  const int64_t tiles = layout_.num_tiles(), devices = grid().num_devices();
  tile_at_.resize(devices);
  first_position_.assign(tiles, -1);
  for (int64_t p = 0; p < devices; ++p) {
    const int64_t tile = layout_.TileAt(p);
    tile_at_[p] = static_cast<int32_t>(tile);
    if (first_position_[tile] < 0) first_position_[tile] = static_cast<int32_t>(p);
  }
  dims_.resize(tiles);
  empty_.resize(tiles);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int d = 0; d < r; ++d) {
      dims_[tile].push_back(intervals_[d][ShardOfTile(tile, d)].size());
    }
    empty_[tile] = NumElements(dims_[tile]) == 0;
  }
  if (devices_per_process_ > 0 && devices > 1 && !per_position_) NumberByProcess();
  for (int64_t i = 0; i < count(); ++i) total_elements_ += NumElements(DimsOf(i));
}

void Placement::NumberByProcess() {
  absl::flat_hash_map<std::pair<int, int32_t>, int32_t> known;
  for (int64_t p = 0; p < grid().num_devices(); ++p) {
    const int home = Homes::Of(grid(), p, devices_per_process_);
    const auto [at, is_new] =
        known.try_emplace({home, tile_at_[p]}, static_cast<int32_t>(position_of_.size()));
    if (is_new) position_of_.push_back(static_cast<int32_t>(p));
    index_at_.push_back(at->second);
  }
}

bool SamePlacement(const Layout& a, const Layout& b) {
  if (a.dims() != b.dims() || !(a.grid() == b.grid() || *a.grid() == *b.grid())) return false;
  const Sharding &s = a.sharding(), &t = b.sharding();
  if (s.manual != t.manual || s.unreduced != t.unreduced ||
      (!s.unreduced.empty() && s.reduce_kind != t.reduce_kind)) {
    return false;
  }
  for (int d = 0; d < a.rank(); ++d) {
    if (s.dims[d].axes != t.dims[d].axes) return false;
    if (!s.dims[d].axes.empty() && a.chunk(d) != b.chunk(d)) return false;
  }
  return true;
}

PlacementPtr PlacementCache::Of(program::ValueId id) {
  const program::Value& value = program_.values[id];
  std::vector<Entry>& entries = entries_[Key(value.grid, value.sharding, value.type.dims)];
  for (const Entry& entry : entries) {
    if (entry.windows == value.windows) return entry.placement;
  }
  Layout layout = program_.LayoutOf(id);
  std::vector<std::vector<Interval>> intervals(layout.rank()), orders(layout.rank());
  // The intervals of one dimension do not depend on the shards of the others, so they are read from
  // the tiles that are first in all other dimensions.
  int64_t stride = layout.grid()->size(layout.sharding().unreduced);
  std::vector<int64_t> strides(layout.rank());
  for (int d = layout.rank() - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= layout.num_shards(d);
  }
  for (const program::WindowDim& window : value.windows) {
    for (int64_t i = 0; i < layout.num_shards(window.dim); ++i) {
      Interval interval = program_.TileBox(id, i * strides[window.dim])[window.dim];
      interval.end = std::max(interval.begin, interval.end);
      intervals[window.dim].push_back(interval);
    }
    orders[window.dim] = window.order;
  }
  auto placement =
      std::make_shared<const Placement>(std::move(layout), per_position_, std::move(intervals),
                                        devices_per_process_, std::move(orders));
  entries.push_back({value.windows, placement});
  return placement;
}

}  // namespace spmd::runtime
