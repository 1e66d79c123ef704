// SPDX-License-Identifier: Apache-2.0
// The partitioned computation: a straight line of instructions, the same for every device. Data
// through and through: it prints, parses, hashes, and is all that the runtime needs.
//
//   mesh @m [data=2, model=4]
//   program {
//     scalar $0: float
//     %x: f32[32,128] @m {data},{model}
//     %w: f32[256,128] @m {},{model}
//     %0: f32[32,256] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, _)
//     %1: f32[32,256] @m {data},{} = all_reduce(%0) {model}
//     free %0
//     return %1 -> %w
//   }
//
// Every value carries its *global* type and its sharding; what a device holds follows from both
// (csrc/sharding/layout.h). Attributes of a call are local: plain, or expressions over its operands'
// and results' tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/ir/graph.h"
#include "csrc/sharding/layout.h"

namespace spmd::program {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// A dimension whose tiles overlap: shard i holds [begin, end) of the value, evaluated with start(r0,0)
// and size(r0,0) = the shard's interval of a dimension of `extent` indices cut by the same axes with
// `chunk`. Indices outside the value hold the fill of the exchange that made it.
// Text, after the dim's axes:  {data window=1:9223..}; see the printer.
struct WindowDim {
  int dim = 0;
  int64_t extent = 0;
  int64_t chunk = 0;  // 0: ⌈extent/k⌉
  Expr begin = 0;
  Expr end = 0;
  friend bool operator==(const WindowDim& a, const WindowDim& b) {
    return a.dim == b.dim && a.extent == b.extent && a.chunk == b.chunk && a.begin == b.begin &&
           a.end == b.end;
  }
};

struct Value {
  TensorType type;  // global
  int grid = 0;
  Sharding sharding;
  std::vector<WindowDim> windows;  // at most one per dim; ascending
  std::string name;                // without '%'; unique
};

enum class OpCode : uint8_t {
  kCall,           // an op on tiles
  kSlice,          // the needed box lies inside the own box
  kAllGather,      // axes leave dimension `dim`
  kAllToAll,       // axes move from dimension `dim` to `to_dim`
  kPermute,        // same boxes on other devices
  kExchange,       // anything else: halos, re-chunking, another grid
  kAllReduce,      // unreduced axes become replicated
  kReduceScatter,  // unreduced axes become cuts of dimension `dim`
  kTerm,           // a value becomes the term of coordinate 0 along axes; the identity elsewhere
  kFree,           // operands are dead
};
absl::string_view OpCodeName(OpCode code);

// An operand that is used at coordinate 0 of `axes` only; elsewhere it is absent (if the op allows)
// or its identity, zero. Bias under a cut contraction.
struct AddedOnce {
  int operand;
  AxisList axes;
};

// Moves (everything but kCall, kFree) take n operands and give n results, result k from operand k, all
// with the same `axes` (and dims): merged collectives have n > 1.
struct Instruction {
  OpCode code = OpCode::kCall;
  std::string op;  // kCall only
  absl::InlinedVector<ValueId, 4> operands;
  absl::InlinedVector<ir::OperandGroup, 1> groups;
  absl::InlinedVector<ValueId, 2> results;
  Attributes attributes;
  std::vector<AddedOnce> added_once;
  AxisList axes;  // moves: the axes over which devices talk
  int dim = -1;
  int to_dim = -1;
  double fill = 0;      // kExchange
  int updates = -1;     // kCall: operand k's tiles may be overwritten by result 0 (it is dead after)
  int64_t task = 0;
  int32_t source = -1;
};

struct Input {
  ValueId value;
  bool donated = false;  // the caller gives its tiles away: the program may overwrite them
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

  ValueId AddValue(Value value);  // names it by number where the name is empty
  Layout LayoutOf(ValueId id) const;
  // The box of tile `tile` (numbered as in LayoutOf(id)), windows included; may reach outside the
  // value where windows do.
  Box TileBox(ValueId id, int64_t tile) const;
  // Bytes of the largest tile.
  int64_t TileBytes(ValueId id) const;

  std::string ToString() const;
  static absl::StatusOr<Program> Parse(absl::string_view text);
  ir::Graph::Fingerprint ComputeFingerprint() const;
};

// Clauses:
//   1. each value is defined once, before its uses, and not used after its free
//   2. ranks, axes and grids agree with types; unreduced kinds agree along reductions
//   3. moves: operand and result have the same global type (windows aside) and grids except exchange
//   4. slice, all_gather, all_to_all, all_reduce, reduce_scatter, term do what their axes say
//   5. outputs are defined; `becomes` agrees in type; at most one output per input
//   6. expressions speak of existing operands, results and dims
absl::Status Verify(const Program& program);

}  // namespace spmd::program
