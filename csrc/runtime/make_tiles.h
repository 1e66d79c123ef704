// SPDX-License-Identifier: Apache-2.0
// Tiles of a value that this process has in parts, and parts of the tiles that it has.
#pragma once

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "csrc/runtime/tiled_tensor.h"

namespace spmd::runtime {

// As Upload, where nobody has the whole value: `fill` writes the part of the value in `box` to
// `tile`, which has its size. It is called for the tiles that this process holds.
TiledTensorPtr MakeTiles(const Layout& layout, DType dtype, Backend& backend, bool whole,
                         absl::FunctionRef<void(const Box& box, const at::Tensor& tile)> fill);
// The part of the value in `box`, which shares its memory, if a tile of this process holds all of
// that part; nullopt if none does, and if tiles are partial sums. Requires: `box` is not empty.
std::optional<at::Tensor> PartHere(const TiledTensor& value, const Box& box);

// A part of a value, and the tile that holds it.
struct HeldPart {
  Box box;
  at::Tensor tile;
};
// The tiles of this process, each once and without empty ones, if they can be overwritten: nothing
// but `value` holds their memory, and no two elements share any. Otherwise nullopt, as for partial
// sums. Requires: nobody but the caller holds `value`.
std::optional<std::vector<HeldPart>> PartsToOverwrite(const TiledTensor& value);

}  // namespace spmd::runtime
