// SPDX-License-Identifier: Apache-2.0
// Bringing a value into another layout: one general routine for every move instruction.
//
// Each tile of the result is covered by pieces of source tiles (intersections of boxes). Which
// pieces follows from the two placements alone, so it is worked out once, when a program is loaded:
//
//   from  [8] {a}  on [a=4]      tiles [0:2) [2:4) [4:6) [6:8)
//   to    [8] {}                 one tile: 4 pieces, copied
//   to    [8] {} unreduced(sum)  … the terms' pieces are added, in device order
//
// A tile that is a source tile is shared; one that lies inside a source tile is a view of it. So
// tiles may alias each other, and a tile may be written into only when its storage has one owner.
// Terms of half types are held in f32 (csrc/program/terms.h): they are added up in f32, and rounded
// when the last of them is there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/type.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/placement.h"

namespace spmd::runtime {

struct Piece {
  int32_t source;  // index of the source tensor; -1: fill
  Dims source_offset;
  Dims target_offset;
  Dims size;
};

struct TileMove {
  enum class Action : uint8_t {
    kIdentity,  // a term that adds nothing
    kShare,     // the source tile itself
    kView,      // a part of one source tile
    kCopy,      // put together from pieces
    kReduce,    // terms, each put together from pieces
  };
  Action action = Action::kCopy;
  Dims dims;
  c10::Device device = c10::Device(c10::kCPU);
  std::vector<std::vector<Piece>> terms;  // one but for kReduce; none for kIdentity
  // The first term is a whole source tile that no other tile of the move needs.
  bool may_accumulate = false;
};

// Axes along which `from` is unreduced and `to` is not are reduced; axes along which only `to` is
// unreduced get the value as the term of coordinate 0. Boxes outside the value get the fill.
struct MovePlan {
  std::vector<TileMove> tiles;  // by index of `to`
  ReduceKind kind = ReduceKind::kSum;
  bool makes_terms = false;  // `to` is unreduced
  // Between grids unreduced axes have no correspondence: `from` is reduced, `to` gets terms.
  static MovePlan Make(const Placement& from, const Placement& to, const Backend& backend);
};

struct MoveRequest {
  absl::Span<at::Tensor> sources;
  // identity[i]: source i is known to be the identity of the reduction; empty when none is.
  absl::Span<const uint8_t> identity;
  DType dtype;  // of the value
  double fill = 0;
  // The first source that the tile is made of is needed by nothing else: if its memory is not
  // shared either, terms may be accumulated into it.
  bool may_take_first = false;
};

// One tile of the result. Never writes into a source unless may_take_first. Thread safety: tiles of
// one plan may be made in parallel.
at::Tensor RunTileMove(const MovePlan& plan, int64_t index, const MoveRequest& request);

// Some terms of a sum, from begin to end, those before them having been added to `sum` already.
// What is undefined (before the first term) is made; with the last term the sum gets the type of
// the result's tiles. Bits do not depend on how the terms are divided, unless `RoundsOnce`.
void AddTerms(const MovePlan& plan, int64_t index, int64_t begin, int64_t end,
              const MoveRequest& request, at::Tensor& sum);
// True where all terms must be added at once to be rounded once: sums and products in types whose
// terms are not held in a wider one.
bool RoundsOnce(ReduceKind kind, DType dtype);

// True when the tensor and its memory belong to the caller alone and every element is its own.
bool IsExclusive(const at::Tensor& tensor);

}  // namespace spmd::runtime
