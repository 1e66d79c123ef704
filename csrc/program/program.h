// SPDX-License-Identifier: Apache-2.0
// The partitioned computation: a straight line of instructions, the same for every device. It is
// plain data: it prints, parses, hashes, and is all that the runtime needs.
//
//   mesh @m [data=2, model=4]
//   program {
//     scalar $0: float
//     %x: f32[32,128] @m {data},{model}
//     %w: f32[256,128] @m {},{model} donated
//     %0: f32[32,256] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, _)
//     %1: f32[32,256] @m {data},{} = all_reduce(%0) {model}
//     free %0
//     %2: f32[256,128] @m {},{model} = call aten::mul.Scalar(%w, other=$0) updates(0)
//     return %1, %2 -> %w
//   }
//
// Every value has its *global* type and its sharding; what a device holds follows from both
// (csrc/sharding/layout.h). Attributes of a call are local: plain values, or expressions over the
// tiles of its operands and results: size=[size(r0,0),size(r0,1)].
//
// Statements, by instruction; meshes, types, scalars and arguments are written as in a graph
// (csrc/ir/graph.h):
//
//   %r: T @m S = call aten::foo(%a, [%b, _], dim=1) added_once(2: model) updates(0) task(3)
//   %r: T @m S = slice(%a) {model} dim(0)             model's axes come to cut dimension 0
//   %r: T @m S = all_gather(%a) {model} dim(0)
//   %r: T @m S = all_to_all(%a) {model} dim(0) to(1)
//   %r: T @m S = permute(%a)
//   %r: T @m S = exchange(%a) fill(-inf)              fill(0.0) is not written
//   %r: T @m S, %s: U @m V = all_reduce(%a, %b) {data}          merged: result k from operand k
//   %r: T @m S = reduce_scatter(%a) {data} dim(0)
//   %r: T @m S = term(%a) {model}
//   free %a, %b
//   return %r -> %w, %s
//
// Axes are written in the grid of the first result. Every statement but free and return may end in
// at "train.py:31", the user's line. `donated` follows the sharding of an input.
//
// A window follows the sharding, one for each dimension whose tiles overlap:
//
//   %h: f32[8,64,3] @m {data},{model},{} window(1: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 64)
//
// means that shard i of dimension 1 is [start-1, start+size+1), where [start, start+size) is shard
// i of 64 indices sharded over `model`; "of 64 chunk 20" where it is not ⌈64/k⌉. With an order,
//
//   %h: f32[4,8] @m {x},{} window(0: start(r0,0)..start(r0,0)+size(r0,0) of 4 order(3..4,0..3))
//
// the window is one of the indices 3, 0, 1, 2: what one exchange rotates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/sharding/layout.h"
#include "csrc/util/box.h"

namespace spmd::program {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// A dimension whose tiles overlap. Shard i holds [begin, end) of the value, evaluated with
// start(r0,0) and size(r0,0) = shard i of a dimension of `extent` indices that the same axes divide
// with `chunk`. Indices outside the value hold the fill of the exchange that produced it. The
// window of an empty shard is empty, whatever the expressions give.
struct WindowDim {
  int dim = 0;
  int64_t extent = 0;
  int64_t chunk = 0;  // 0: ⌈extent/k⌉
  Expr begin = 0;
  Expr end = 0;
  // The dimension's indices in the order to which `begin` and `end` refer; empty: their own.
  std::vector<Interval> order;
  // The window of shard `shard`, one of those along `axes`.
  // Requires: CheckLayout of one dimension passes.
  Interval At(const Grid& grid, const AxisList& axes, int64_t shard) const;
  friend bool operator==(const WindowDim& a, const WindowDim& b) {
    return a.dim == b.dim && a.extent == b.extent && a.chunk == b.chunk && a.begin == b.begin &&
           a.end == b.end && a.order == b.order;
  }
};

// The indices at positions `at` of a dimension whose indices are in that order; `at` itself if the
// order is empty. Requires: all of `at` is in the order.
std::vector<Interval> InOrder(absl::Span<const Interval> order, const Interval& at);

struct Value {
  TensorType type;  // global
  int grid = 0;
  Sharding sharding;
  std::vector<WindowDim> windows;  // at most one per dim; ascending
  std::string name;                // without '%'; unique
};

enum class OpCode : uint8_t {
  kCall,           // an op on tiles
  kSlice,          // each device's new box lies inside the box that it has
  kAllGather,      // axes leave dimension `dim`
  kAllToAll,       // axes move from dimension `dim` to `to_dim`
  kPermute,        // same boxes on other devices
  kExchange,       // anything else: halos, re-chunking, another grid
  kAllReduce,      // unreduced axes become replicated
  kReduceScatter,  // unreduced axes shard dimension `dim`
  kTerm,  // a value becomes the term of coordinate 0 along axes; the others hold the identity
  kFree,  // operands are dead
};
absl::string_view OpCodeName(OpCode code);
inline bool IsMove(OpCode code) { return code != OpCode::kCall && code != OpCode::kFree; }
// True for moves in which devices send something to each other.
inline bool Communicates(OpCode code) {
  return IsMove(code) && code != OpCode::kSlice && code != OpCode::kTerm;
}

// An operand that is used at coordinate 0 of `axes` only, such as the bias of a sharded
// contraction. Elsewhere it is absent (if the op allows) or its identity, zero.
struct AddedOnce {
  int operand;
  AxisList axes;
  friend bool operator==(const AddedOnce& a, const AddedOnce& b) {
    return a.operand == b.operand && a.axes == b.axes;
  }
};

// Moves (everything but kCall and kFree) take n operands and give n results, result k from operand
// k, all over the same `axes` (and dims). Merged collectives have n > 1.
struct Instruction {
  OpCode code = OpCode::kCall;
  std::string op;  // kCall only
  absl::InlinedVector<ValueId, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
  absl::InlinedVector<ValueId, 2> results;
  Attributes attributes;
  std::vector<AddedOnce> added_once;
  AxisList axes;  // moves: the axes over which devices communicate
  int dim = -1;
  int to_dim = -1;
  double fill = 0;   // kExchange
  int updates = -1;  // kCall: result 0 may overwrite this operand, which is dead afterwards
  int64_t task = 0;
  int32_t source = -1;
};

struct Input {
  ValueId value;
  bool donated = false;  // the caller gives up its tiles, so the program may overwrite them
};

struct Output {
  ValueId value;
  int becomes = -1;  // index of the input whose buffer it replaces, or -1
};

// Invariants: see Verify. Thread safety: thread-compatible.
struct Program {
  std::vector<GridPtr> grids;
  std::vector<std::string> grid_names;
  std::vector<ir::ScalarKind> scalars;
  std::vector<std::string> sources;
  std::vector<Value> values;
  std::vector<Input> inputs;
  std::vector<Instruction> instructions;
  std::vector<Output> outputs;

  // A value without a name is named by its number.
  ValueId AddValue(Value value);
  int32_t AddSource(absl::string_view line);  // equal lines have one number
  Layout LayoutOf(ValueId id) const;
  // The box of tile `tile` (numbered as in LayoutOf(id)) with its windows, which may reach outside
  // the value. Where a window has an order, these are positions in it.
  Box TileBox(ValueId id, int64_t tile) const;
  // Bytes of the largest tile.
  int64_t TileBytes(ValueId id) const;

  std::string ToString() const;
  // Errors: InvalidArgument "line 4: …" for text that cannot be read. Broken invariants are left to
  // Verify.
  static absl::StatusOr<Program> Parse(absl::string_view text);
  // Covers everything that ToString prints, except names and sources. Parsing preserves it.
  ir::Graph::Fingerprint ComputeFingerprint() const;
};

// The clauses, each with its own message naming the value or the instruction:
//   1. each value is defined once, before its uses, and not used after its free
//   2. ranks, axes, chunks and grids fit the types; names are unique; windows name dimensions,
//      ascending, and only calls, exchanges and slices make values with windows
//   3. moves have as many results as operands, result k of operand k's type; grids agree except
//      over an exchange
//   4. slice, all_gather, all_to_all, permute, all_reduce, reduce_scatter, term and exchange turn
//      the operand's sharding into the result's as their axes and dimensions say
//   5. outputs are defined and not freed; `becomes` names an input of the same type, each at most
//      once
//   6. expressions speak of existing operands, results, dims and sub-axes; scalars are declared
//   7. `updates` and `added_once` name operands; an updated operand has no use after, is no output
//      and, if an input, is donated
absl::Status Verify(const Program& program);

}  // namespace spmd::program
