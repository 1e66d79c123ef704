// SPDX-License-Identifier: Apache-2.0
// Brings a value into another layout. One general routine does every move instruction.
//
// Each tile of the result is covered by pieces of source tiles (intersections of boxes). The pieces
// follow from the two placements alone, so they are computed once, when a program is loaded:
//
//   from  [8] {a}  on [a=4]      tiles [0:2) [2:4) [4:6) [6:8)
//   to    [8] {}                 one tile: 4 pieces, copied
//   from  [8] {} unreduced(sum)  the pieces of the partial sums are added, in device order
//
// A tile that equals a source tile is shared; one that lies inside a source tile is a view of it.
// So tiles may alias each other, and a tile may be written into only if its storage has one owner.
// Partial sums of half types are held in f32 (csrc/program/terms.h): they travel and are added up
// in f32, and are rounded after the last one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/type.h"
#include "csrc/runtime/backend.h"
#include "csrc/runtime/placement.h"
#include "csrc/runtime/transfer.h"

namespace spmd::runtime {

struct Piece {
  int32_t source;  // index of the source tensor, or plan.num_sources + a slot; -1: fill
  Dims source_offset;
  Dims target_offset;
  Dims size;
};

struct TileMove {
  enum class Action : uint8_t {
    kIdentity,   // a partial result that is the identity
    kShare,      // the source tile itself
    kView,       // a part of one source tile
    kCopy,       // assembled from pieces
    kReduce,     // the sum of terms, each assembled from pieces
    kElsewhere,  // another process makes it
  };
  Action action = Action::kCopy;
  Dims dims;
  Place place = {c10::Device(c10::kCPU)};
  std::vector<std::vector<Piece>> terms;  // none for kIdentity, one except for kReduce
  // True if the first term is a whole source tile that no other tile of the move needs.
  bool may_accumulate = false;
};

// How a value moves from `from` to `to`. Axes along which only `from` is unreduced are reduced.
// Along axes along which only `to` is unreduced, coordinate 0 gets the value and the others the
// identity. Boxes outside the value get the fill.
struct MovePlan {
  std::vector<TileMove> tiles;  // by index of `to`
  ReduceKind kind = ReduceKind::kSum;
  bool makes_terms = false;  // `to` is unreduced
  const Backend* backend = nullptr;
  int64_t num_sources = 0;  // the indices of `from`
  Transfer transfer;        // what this process sends and receives before it makes its tiles
  // Unreduced axes of different grids do not correspond: `from` is reduced along all of its axes
  // then, and coordinate 0 of all unreduced axes of `to` gets the value. Keeps a pointer to
  // `backend`.
  // With `one_by_one` partial sums of several processes are sent one by one (RoundsOnce).
  static MovePlan Make(const Placement& from, const Placement& to, const Backend& backend,
                       bool one_by_one = false);
};

// The part of `tile` that begins at `offset`, as one view.
at::Tensor PartOfTile(const at::Tensor& tile, const Dims& offset, const Dims& size);

struct MoveRequest {
  absl::Span<at::Tensor> sources;  // followed by the slots of plan.transfer
  // identity[i] is 1 if source i is known to be the identity of the reduction; empty if none is.
  absl::Span<const uint8_t> identity;
  DType dtype;  // of the value
  double fill = 0;
  // True if nothing else needs the first source of the tile. If its memory is not shared either,
  // terms may be accumulated into it.
  bool may_take_first = false;
};

// Makes one tile of the result. Writes into a source only if request.may_take_first.
// Thread safety: tiles of one plan may be made in parallel.
at::Tensor RunTileMove(const MovePlan& plan, int64_t index, const MoveRequest& request);

// Adds the terms [begin, end) of tile `index` to `sum`, to which those before `begin` have been
// added. `sum` is created if it is undefined, before the first term; with the last term it gets the
// type of the result's tiles. The bits do not depend on how the terms are divided, unless
// RoundsOnce.
void AddTerms(const MovePlan& plan, int64_t index, int64_t begin, int64_t end,
              const MoveRequest& request, at::Tensor& sum);
// True if all terms must be added at once in order to be rounded once: sums and products in types
// whose partial results are not held in a wider type.
bool RoundsOnce(ReduceKind kind, DType dtype);

// True if the tensor and its memory belong to the caller alone and no two elements share memory.
bool IsExclusive(const at::Tensor& tensor);

}  // namespace spmd::runtime
