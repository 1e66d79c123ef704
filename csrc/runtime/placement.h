// SPDX-License-Identifier: Apache-2.0
// A layout in explicit form for running: the tensor that each device position uses, and its box.
//
// Normally there is one tensor per distinct tile; with `per_position` (deduplication off, or
// several places) there is one per device position. Where several processes share the devices,
// there is one for each process and distinct tile that the process holds. An *index* numbers these
// tensors, a *tile* the distinct tiles of the layout. Placements are the same in every process.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "csrc/program/program.h"
#include "csrc/runtime/homes.h"
#include "csrc/sharding/layout.h"

namespace spmd::runtime {

// Thread safety: immutable.
class Placement {
 public:
  // intervals[d][i] are the indices that shard i of dimension d holds; an empty list means the
  // layout's own. `devices_per_process` is as in Homes; orders[d] is as order(d) below.
  Placement(Layout layout, bool per_position, std::vector<std::vector<Interval>> intervals = {},
            int64_t devices_per_process = 0, std::vector<std::vector<Interval>> orders = {});

  const Layout& layout() const { return layout_; }
  const Grid& grid() const { return *layout_.grid(); }
  const Sharding& sharding() const { return layout_.sharding(); }
  int rank() const { return layout_.rank(); }
  bool per_position() const { return per_position_; }

  // True if each tile has one index, its own number.
  bool per_tile() const { return !per_position_ && index_at_.empty(); }
  int64_t devices_per_process() const { return devices_per_process_; }

  int64_t count() const {
    return per_position_ ? grid().num_devices()
                         : (per_tile() ? layout_.num_tiles() : std::ssize(position_of_));
  }
  int64_t TileAt(int64_t position) const { return tile_at_[position]; }
  int64_t IndexAt(int64_t position) const {
    return per_position_ ? position : (per_tile() ? tile_at_[position] : index_at_[position]);
  }
  int64_t TileOf(int64_t index) const { return per_tile() ? index : tile_at_[PositionOf(index)]; }
  // The first position with this index.
  int64_t PositionOf(int64_t index) const {
    return per_position_ ? index : (per_tile() ? first_position_[index] : position_of_[index]);
  }
  // The process that holds the tensor, or Homes::kEverywhere.
  int HomeOf(int64_t index) const {
    return Homes::Of(grid(), PositionOf(index), devices_per_process_);
  }
  // The first position that holds the tile.
  int64_t FirstPosition(int64_t tile) const { return first_position_[tile]; }

  int64_t num_shards(int dim) const { return static_cast<int64_t>(intervals_[dim].size()); }
  const Interval& ShardInterval(int dim, int64_t shard) const { return intervals_[dim][shard]; }
  // True if the shards of `dim` are not the layout's own: they may overlap and reach outside the
  // value.
  bool windowed(int dim) const { return windowed_[dim]; }
  // The value's indices in the order to which the shards of `dim` refer; empty: their own.
  const std::vector<Interval>& order(int dim) const { return orders_[dim]; }
  int64_t num_terms() const { return num_terms_; }
  int64_t ShardOfTile(int64_t tile, int dim) const { return tile / stride_[dim] % num_shards(dim); }
  // The distance in tiles between neighbouring shards of `dim`.
  int64_t stride(int dim) const { return stride_[dim]; }

  const Dims& DimsOfTile(int64_t tile) const { return dims_[tile]; }
  const Dims& DimsOf(int64_t index) const { return dims_[TileOf(index)]; }
  bool TileIsEmpty(int64_t tile) const { return empty_[tile]; }
  int64_t TileBegin(int64_t tile, int dim) const {
    return intervals_[dim][ShardOfTile(tile, dim)].begin;
  }
  // The number of elements of all tensors together.
  int64_t total_elements() const { return total_elements_; }

 private:
  void NumberByProcess();

  Layout layout_;
  bool per_position_;
  int64_t devices_per_process_;
  friend int64_t HeapBytes(const Placement& placement);

  std::vector<std::vector<Interval>> intervals_;
  std::vector<bool> windowed_;
  std::vector<std::vector<Interval>> orders_;
  int64_t num_terms_ = 1;
  std::vector<int64_t> stride_;
  std::vector<int32_t> tile_at_;
  std::vector<int32_t> first_position_;
  // With several processes: the index at each position, and the first position of each index.
  std::vector<int32_t> index_at_;
  std::vector<int32_t> position_of_;
  std::vector<Dims> dims_;
  std::vector<bool> empty_;
  int64_t total_elements_ = 0;
};

using PlacementPtr = std::shared_ptr<const Placement>;

// True if the layouts give equal boxes to equal devices. Compares everything but `open` and the way
// in which a chunk is written.
bool SamePlacement(const Layout& a, const Layout& b);

// Makes one Placement per distinct pair of layout and windows in a program, so that placements are
// equal if their pointers are.
class PlacementCache {
 public:
  PlacementCache(const program::Program& program, bool per_position,
                 int64_t devices_per_process = 0)
      : program_(program), per_position_(per_position), devices_per_process_(devices_per_process) {}
  PlacementPtr Of(program::ValueId id);

 private:
  using Key = std::tuple<int, Sharding, Dims>;
  struct Entry {
    std::vector<program::WindowDim> windows;
    PlacementPtr placement;
  };
  const program::Program& program_;
  bool per_position_;
  int64_t devices_per_process_;
  absl::flat_hash_map<Key, std::vector<Entry>> entries_;
};

}  // namespace spmd::runtime
