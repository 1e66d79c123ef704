// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd {

absl::Status CheckLayout(const Grid& grid, const Sharding& sharding,
                         absl::Span<const int64_t> dims) {
  AxisMask seen = 0;
  auto check_axes = [&](const AxisList& axes) {
    for (AxisId axis : axes) {
      if (axis < 0 || axis >= grid.num_axes()) {
        return absl::InvalidArgumentError(absl::StrCat("axis ", static_cast<int>(axis),
                                                       " is not one of the ", grid.num_axes(),
                                                       " sub-axes of grid ", grid.ToString()));
      }
      if (seen & MaskOf(axis)) {
        return absl::InvalidArgumentError(
            absl::StrCat("axis '", grid.AxesToString({axis}), "' of grid ", grid.ToString(),
                         " is used twice; an axis shards one dimension only"));
      }
      seen |= MaskOf(axis);
    }
    return absl::OkStatus();
  };
  for (const DimSharding& dim : sharding.dims) SPMD_RETURN_IF_ERROR(check_axes(dim.axes));
  SPMD_RETURN_IF_ERROR(check_axes(sharding.unreduced));
  SPMD_RETURN_IF_ERROR(check_axes(sharding.manual));
  if (sharding.rank() != static_cast<int>(dims.size())) {
    return absl::InvalidArgumentError(absl::StrCat("sharding ", sharding.ToString(grid), " has ",
                                                   sharding.rank(), " dimensions, ",
                                                   DimsToString(dims), " has ", dims.size()));
  }
  for (int d = 0; d < sharding.rank(); ++d) {
    const DimSharding& dim = sharding.dims[d];
    if (dim.chunk == 0) continue;
    // The last shard gets the rest, which must be at most two chunks.
    const int64_t least = CeilDiv(dims[d], grid.size(dim.axes) + 1);
    if (dim.axes.empty() || dim.chunk < least) {
      return absl::InvalidArgumentError(
          absl::StrCat("sharding ", sharding.ToString(grid), " of ", DimsToString(dims),
                       " has chunk ", dim.chunk, " in dimension ", d,
                       dim.axes.empty() ? ", which is not sharded"
                                        : absl::StrCat("; it must be at least ", least)));
    }
  }
  return absl::OkStatus();
}

Layout::Layout(GridPtr grid, Sharding sharding, Dims dims) {
  const absl::Status status = CheckLayout(*grid, sharding, dims);
  SPMD_CHECK(status.ok(), status.ToString());
  auto parts = std::make_shared<Parts>();
  parts->used_axes = sharding.manual;
  for (int d = 0; d < sharding.rank(); ++d) {
    const DimSharding& dim = sharding.dims[d];
    parts->shards.push_back(grid->size(dim.axes));
    parts->chunk.push_back(dim.chunk != 0 ? dim.chunk : CeilDiv(dims[d], parts->shards[d]));
    parts->used_axes.insert(parts->used_axes.end(), dim.axes.begin(), dim.axes.end());
  }
  parts->used_axes.insert(parts->used_axes.end(), sharding.unreduced.begin(),
                          sharding.unreduced.end());
  parts->num_tiles = grid->size(parts->used_axes);
  parts->grid = std::move(grid);
  parts->sharding = std::move(sharding);
  parts->dims = std::move(dims);
  parts_ = std::move(parts);
}

Interval Layout::ShardInterval(int dim, int64_t shard) const {
  const int64_t n = dims()[dim];
  // A large chunk would overflow shard · chunk; every shard that begins past the end is empty at n.
  const int64_t begin = chunk(dim) == 0 || shard > n / chunk(dim) ? n : shard * chunk(dim);
  const int64_t rest = n - std::min(begin, n);
  const int64_t size = shard == num_shards(dim) - 1 ? rest : std::min(chunk(dim), rest);
  return {std::min(begin, n), std::min(begin, n) + size};
}

bool Layout::IsEven() const {
  for (int d = 0; d < rank(); ++d) {
    // Sizes never grow from one shard to the next, except to the last one.
    if (ShardInterval(d, 0).size() != ShardInterval(d, num_shards(d) - 1).size()) return false;
  }
  return true;
}

int64_t Layout::TileAt(int64_t position) const {
  return grid()->Coordinate(position, parts_->used_axes);
}

int64_t Layout::FirstPositionOf(int64_t tile) const {
  return grid()->WithCoordinate(0, parts_->used_axes, tile);
}

Box Layout::BoxOfTile(int64_t tile) const {
  tile /= grid()->size(sharding().unreduced);
  Box box(rank());
  for (int d = rank() - 1; d >= 0; --d) {
    box[d] = ShardInterval(d, tile % num_shards(d));
    tile /= num_shards(d);
  }
  return box;
}

int64_t Layout::TermOfTile(int64_t tile) const { return tile % grid()->size(sharding().unreduced); }

int64_t Layout::MaxTileElements() const {
  int64_t n = 1;
  for (int d = 0; d < rank(); ++d) {
    n *= std::max(ShardInterval(d, 0).size(), ShardInterval(d, num_shards(d) - 1).size());
  }
  return n;
}

std::string Layout::ToString() const {
  const std::string text = sharding().ToString(*grid());
  return absl::StrCat(DimsToString(dims()), text.empty() ? "" : " ", text);
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.parts_ == b.parts_) return true;
  if (a.dims() != b.dims() || a.parts_->chunk != b.parts_->chunk) return false;
  if (a.grid() != b.grid() && *a.grid() != *b.grid()) return false;
  for (int d = 0; d < a.rank(); ++d) {
    if (a.sharding().dims[d].axes != b.sharding().dims[d].axes) return false;
  }
  return a.sharding().unreduced == b.sharding().unreduced &&
         a.sharding().reduce_kind == b.sharding().reduce_kind &&
         a.sharding().manual == b.sharding().manual;
}

}  // namespace spmd
