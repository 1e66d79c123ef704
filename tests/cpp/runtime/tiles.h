// SPDX-License-Identifier: Apache-2.0
// Creates and reads tiled values without the code under test: tile by tile, from Layout alone.
#pragma once

#include <ATen/ATen.h>

#include <random>
#include <string>
#include <vector>

#include "csrc/mesh/grid.h"
#include "csrc/program/terms.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/sharding/layout.h"

namespace spmd::runtime {

inline GridPtr MakeGrid(std::vector<int64_t> shape, std::vector<std::string> names,
                        std::vector<int64_t> devices = {}) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  if (devices.empty()) {
    for (int64_t i = 0; i < n; ++i) devices.push_back(i);
  }
  return Grid::Of(*Mesh::Create(std::move(devices), std::move(shape), std::move(names)));
}

inline at::IntArrayRef Sizes(const Dims& dims) { return {dims.data(), dims.size()}; }

inline at::Tensor PartOf(const at::Tensor& whole, const Box& box) {
  at::Tensor part = whole;
  for (size_t d = 0; d < box.size(); ++d) {
    const int64_t size = box[d].size();
    part = part.narrow(static_cast<int64_t>(d), size == 0 ? 0 : box[d].begin, size);
  }
  return part;
}

inline at::Tensor Combine(ReduceKind kind, const at::Tensor& a, const at::Tensor& b) {
  switch (kind) {
    case ReduceKind::kSum:
      return a.add(b);
    case ReduceKind::kProd:
      return a.mul(b);
    case ReduceKind::kMax:
      return at::maximum(a, b);
    case ReduceKind::kMin:
      return at::minimum(a, b);
    case ReduceKind::kAnd:
      return a.logical_and(b);
    case ReduceKind::kOr:
      return a.logical_or(b);
  }
  return a;
}

// The value that tiles represent. Checks that there is a tile of the right size for each box.
inline at::Tensor Assemble(const TiledTensor& value) {
  const Layout& layout = value.layout;
  const int64_t terms = layout.grid()->size(layout.sharding().unreduced);
  const DType held = program::HeldType(value.dtype, layout.sharding());
  at::Tensor result;
  for (int64_t term = 0; term < terms; ++term) {
    at::Tensor whole = at::empty(Sizes(layout.dims()), ToScalarType(held));
    const int64_t count = value.per_position ? layout.grid()->num_devices() : layout.num_tiles();
    TORCH_CHECK(static_cast<int64_t>(value.tiles.size()) == count, "tiles: ", value.tiles.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t tile = value.per_position ? layout.TileAt(i) : i;
      if (layout.TermOfTile(tile) != term) continue;
      PartOf(whole, layout.BoxOfTile(tile)).copy_(value.tiles[i]);
    }
    result = result.defined() ? Combine(layout.sharding().reduce_kind, result, whole) : whole;
  }
  return result.to(ToScalarType(value.dtype));
}

// Random tiles of integers, so that sums are exact in any order.
inline TiledTensorPtr RandomTiles(const Layout& layout, at::ScalarType type = at::kFloat) {
  auto value = std::make_shared<TiledTensor>(TiledTensor{layout, FromScalarType(type), {}});
  for (int64_t t = 0; t < layout.num_tiles(); ++t) {
    const Dims dims = BoxDims(layout.BoxOfTile(t));
    const bool is_bool = type == at::kBool;
    const DType held = program::HeldType(value->dtype, layout.sharding());
    value->tiles.push_back(at::randint(is_bool ? 0 : -4, is_bool ? 2 : 5, Sizes(dims), at::kLong)
                               .to(ToScalarType(held)));
  }
  return value;
}

// A layout that shards `dims` over a random choice of the grid's sub-axes; some are unreduced.
class LayoutMaker {
 public:
  explicit LayoutMaker(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }

  Layout Make(const GridPtr& grid, const Dims& dims, bool allow_unreduced,
              ReduceKind kind = ReduceKind::kSum) {
    Sharding sharding = Sharding::Replicated(static_cast<int>(dims.size()));
    std::vector<AxisId> axes;
    for (AxisId a = 0; a < grid->num_axes(); ++a) axes.push_back(a);
    std::shuffle(axes.begin(), axes.end(), random_);
    for (AxisId axis : axes) {
      const int64_t choice = Below(static_cast<int64_t>(dims.size()) + 2);
      if (choice < static_cast<int64_t>(dims.size())) {
        sharding.dims[choice].axes.push_back(axis);
      } else if (choice == static_cast<int64_t>(dims.size()) && allow_unreduced) {
        sharding.unreduced.push_back(axis);
      }
    }
    std::sort(sharding.unreduced.begin(), sharding.unreduced.end());
    if (!sharding.unreduced.empty()) sharding.reduce_kind = kind;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!sharding.dims[d].axes.empty() && Below(3) == 0) {
        const int64_t k = grid->size(sharding.dims[d].axes);
        const int64_t least = std::max<int64_t>(CeilDiv(dims[d], k + 1), 1);
        sharding.dims[d].chunk = least + Below(CeilDiv(dims[d], k) + 2 - least);
      }
    }
    return Layout(grid, sharding, dims);
  }

 private:
  std::mt19937 random_;
};

}  // namespace spmd::runtime
