// SPDX-License-Identifier: Apache-2.0
// A sharding with the global sizes: which box each device holds. No other code computes who holds
// what.
//
// A dimension of n elements over k shards has a chunk c, by default ⌈n/k⌉. Shard i gets the
// interval [i·c, min((i+1)·c, n)); the last shard gets everything from (k-1)·c on, at most two
// chunks. Trailing shards may be smaller or empty:
//
//   n=10 over 4      c=3    [0:3) [3:6) [6:9) [9:10)
//   n=5  over 4      c=2    [0:2) [2:4) [4:5) [5:5)
//   n=9  over 4      c=2    [0:2) [2:4) [4:6) [6:9)      the boundaries of 8 over 4
//
// Tiles. Devices with equal coordinates along all axes that the sharding uses (dims, unreduced and
// manual) are replicas and hold the same tile. Tile t of num_tiles() is numbered by the coordinates
// along the used axes as one mixed-radix number, first axis major: the manual axes, the dims' axes
// in order of dimension, then the unreduced axes.
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

// Errors: InvalidArgument naming what does not fit: the rank, an axis that the grid lacks or that
// occurs twice, a chunk so small that the last shard would hold more than two, or a chunk of a
// dimension without axes.
absl::Status CheckLayout(const Grid& grid, const Sharding& sharding,
                         absl::Span<const int64_t> dims);

// Copies share their contents, so that they are cheap: every result of every run has a layout.
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
  // The index of the tile's partial sum along the unreduced axes; 0 where there are none.
  int64_t TermOfTile(int64_t tile) const;
  // The number of elements of the largest tile, which is what each device must have room for.
  int64_t MaxTileElements() const;

  std::string ToString() const;  // "[32,128] {data},{}"
  // True if the same tiles are on the same devices. An explicit chunk equals the same chunk by
  // default, and `open` is ignored.
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
