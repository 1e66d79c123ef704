// SPDX-License-Identifier: Apache-2.0
// Tiles of a value that this process has in parts, and parts of the tiles that it has.
#pragma once

#include <optional>

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

}  // namespace spmd::runtime
