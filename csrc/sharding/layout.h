// SPDX-License-Identifier: Apache-2.0
// Sharding + global sizes: which box each device holds. The only code that computes who holds what.
//
// A dimension of n elements over k shards with chunk c, ⌈n/k⌉ by default, gives shard i the
// interval [i·c, min((i+1)·c, n)), and the last one all from (k-1)·c, at most two chunks; trailing
// shards may be smaller or empty:
//
//   n=10 over 4      c=3    [0:3) [3:6) [6:9) [9:10)
//   n=5  over 4      c=2    [0:2) [2:4) [4:5) [5:5)
//   n=9  over 4      c=2    [0:2) [2:4) [4:6) [6:9)      boundaries of 8 over 4
//
// Tiles. Devices that agree in all axes the sharding uses (dims and unreduced) are replicas and
// hold the same tile. Tile t of num_tiles() is numbered by the coordinates along the used axes: the
// dims' axes in order of dimension, then the unreduced ones, as one mixed-radix number, first axis
// major.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"
#include "csrc/util/box.h"
#include "csrc/util/dims.h"

namespace spmd {

// Errors: InvalidArgument saying what does not fit: the rank, an axis that is not the grid's or
// occurs twice, a chunk so small that the last shard would hold more than two, or without axes.
absl::Status CheckLayout(const Grid& grid, const Sharding& sharding,
                         absl::Span<const int64_t> dims);

// Copies share what they hold: every result of every run has one.
// Thread safety: immutable.
class Layout {
 public:
  // Requires: CheckLayout(*grid, sharding, dims).
  Layout(GridPtr grid, Sharding sharding, Dims dims);

  const GridPtr& grid() const { return parts_->grid; }
  const Sharding& sharding() const { return parts_->sharding; }
  const Dims& dims() const { return parts_->dims; }
  int rank() const { return sharding().rank(); }

  int64_t num_shards(int dim) const { return parts_->shards[dim]; }
  int64_t chunk(int dim) const { return parts_->chunk[dim]; }
  Interval ShardInterval(int dim, int64_t shard) const;
  // True when every shard of every dimension has the same size.
  bool IsEven() const;

  int64_t num_tiles() const { return parts_->num_tiles; }
  int64_t TileAt(int64_t position) const;       // the tile a device (by position) holds
  int64_t FirstPositionOf(int64_t tile) const;  // the first device that holds it
  Box BoxOfTile(int64_t tile) const;
  Box BoxAt(int64_t position) const { return BoxOfTile(TileAt(position)); }
  // Number of the tile's term along the unreduced axes; 0 where there are none.
  int64_t TermOfTile(int64_t tile) const;
  // Elements of the largest tile: what a device must hold.
  int64_t MaxTileElements() const;

  std::string ToString() const;  // "[32,128] {data},{}"
  // The same tiles on the same devices: a chunk given and the same chunk by default are equal, and
  // it does not matter which dimensions are open.
  friend bool operator==(const Layout& a, const Layout& b);
  friend bool operator!=(const Layout& a, const Layout& b) { return !(a == b); }

 private:
  struct Parts {
    GridPtr grid;
    Sharding sharding;
    Dims dims;
    absl::InlinedVector<int64_t, 5> shards;
    absl::InlinedVector<int64_t, 5> chunk;
    AxisList used_axes;  // in tile-number order
    int64_t num_tiles = 1;
  };
  std::shared_ptr<const Parts> parts_;
};

}  // namespace spmd
