// SPDX-License-Identifier: Apache-2.0
// The traced computation. A graph is append-only, topologically ordered by construction,
// functional, and has no strides.
//
//   mesh @m [data=2, model=4]
//   graph {
//     scalar $0: float
//     %x: f32[32,128] @m {data},{}
//     %w: f32[256,128] @m {model},{}
//     %0: f32[32,256] = aten::linear(%x, %w, _)
//     %1: f32[32,256] = aten::mul.Scalar(%0, other=$0)
//     %2: f32[256,128] = aten::add.Tensor(%w, %w, alpha=$0) updates(0)
//     return %1, %2 -> %w
//   }
//
// `_` is an absent optional operand; a Tensor[] argument is written [%a, %b]. Attributes follow the
// operands by name. `-> %w` says that the result becomes the new value of the buffer whose old
// value is the input %w. `updates(k)` lets the program overwrite operand k if it is dead by then.
//
// An annotation follows a type:
//
//   @m {..}   committed: the user's mark, binding
//   @m! {..}  the same, of a parameter: this program or a later one overwrites it
//   @m~ {..}  settled: the layout that a long-lived buffer has already; a preference
//   @m= {..}  derived by propagation
//
// A node may end in its cut, which is the axes given to each factor of its rule, by factor number:
//
//   %0: f32[32,256] = aten::linear(%x, %w, _) cut {0: data, 1: model}
//
// There is one statement per line; comments begin with '#' or '//'. Grid 0 is the first mesh;
// `devices` is written where their order is not 0..n-1:
//
//   mesh @r [x=4] devices=[3,1,0,2]
//
// Several results, and what may follow a node, in this order:
//
//   %3: f32[4], %4: i64[4] = aten::max.dim(%0, dim=1, keepdim=false)
//   … = op(…) updates(0) task(7) cut @r {0: x chunk=3} at "train.py:12"
//
// An output that may stay unreduced (Output::may_stay_unreduced), and one that nobody has asked for
// (Output::held):
//
//   return %3 -> %w unreduced, %4 held
//
// In a manual region a value has local sizes, and each device along its manual axes has its own
// (csrc/ir/border.h). A result has the manual axes of its operands, as borders change them. An
// input has those of its annotation: @m~ {},{} manual{x}.
//
// Unnamed values are called %0, %1, … in order of creation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/attributes.h"
#include "csrc/ir/border.h"
#include "csrc/ir/fingerprint.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"
#include "csrc/util/checked_vector.h"

namespace spmd::ir {

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr ValueId kNoValue = -1;  // an absent optional operand
inline constexpr NodeId kNoNode = -1;    // the producer of a graph input

// How firmly an annotation holds; see the text forms above.
enum class Hold : uint8_t { kCommitted, kSettled, kDerived };

struct Annotation {
  int grid = 0;  // index into Graph::grids()
  Sharding sharding;
  Hold hold = Hold::kCommitted;
  bool of_parameter = false;  // only where committed
};

struct Value {
  TensorType type;
  NodeId producer = kNoNode;
  int index = 0;     // which result of the producer, or which input
  std::string name;  // without '%'; unique
  std::optional<Annotation> annotation;
  AxisMask manual = 0;  // of manual_grid
  int manual_grid = 0;
};

// A Tensor[] argument: operands [begin, begin + size).
struct OperandGroup {
  int begin = 0;
  int size = 0;
  friend bool operator==(OperandGroup a, OperandGroup b) {
    return a.begin == b.begin && a.size == b.size;
  }
};

// The axes assigned to one factor of the node's rule. Two further forms name axes along which the
// node's results stay unreduced: factor -1 together with its jointly linear operands, factor -2-k
// together with its linear operand k alone.
struct FactorCut {
  int factor;
  AxisList axes;
  int64_t chunk = 0;  // indices per shard; 0: ⌈size/shards⌉. Text: {0: data chunk=6}
  friend bool operator==(const FactorCut& a, const FactorCut& b) {
    return a.factor == b.factor && a.axes == b.axes && a.chunk == b.chunk;
  }
};

struct Node {
  std::string op;  // name with overload, as the dispatcher writes it: "aten::add.Tensor"
  absl::InlinedVector<ValueId, 4> operands;
  absl::InlinedVector<OperandGroup, 1> groups;  // ascending
  Attributes attributes;
  ValueId first_result = 0;
  int num_results = 0;
  int updates = -1;     // operand that may be overwritten, or -1
  int64_t task = 0;     // autograd graph task; nodes of different tasks never merge
  int32_t source = -1;  // index into Graph::sources(), or -1
  std::optional<std::vector<FactorCut>> cut;  // set by the pass `choose`
  int cut_grid = 0;
  // Follow from the operands and the attributes. `manual`: of the operands and the results, axes of
  // manual_grid.
  std::shared_ptr<const Border> border;
  AxisMask manual = 0;
  int manual_grid = 0;
};

enum class ScalarKind : uint8_t { kBool, kInt, kFloat, kComplex };
absl::string_view ScalarKindName(ScalarKind kind);  // "bool" "int" "float" "complex"

struct Output {
  ValueId value;
  ValueId becomes = kNoValue;  // the input whose buffer it replaces, if any
  // A gradient to which later programs go on adding, so that it may stay unreduced.
  bool may_stay_unreduced = false;
  // A value that someone still holds and nobody has asked for, so that it may stay unreduced. What
  // uses it later reduces it.
  bool held = false;
};

// Invariants: see Verify. Copyable; copying is deep.
// Thread safety: thread-compatible.
class Graph {
 public:
  // None of the builders checks invariants; Verify does. Grids are referred to by index everywhere
  // else. Grid 0 is the default.
  int AddGrid(GridPtr grid, std::string name);
  int AddScalar(ScalarKind kind);  // returns the slot
  int32_t AddSource(std::string line);
  ValueId AddInput(TensorType type, std::string name = "");  // "": named by the next number

  struct NodeSpec {
    std::string op;
    absl::InlinedVector<ValueId, 4> operands;
    absl::InlinedVector<OperandGroup, 1> groups;
    Attributes attributes;
    int updates = -1;
    int64_t task = 0;
    int32_t source = -1;
  };
  // Appends a node with results of the given types.
  // Requires: the operands exist already.
  NodeId AddNode(NodeSpec spec, absl::Span<const TensorType> results);
  // The same for a node with one result.
  ValueId Add(NodeSpec spec, TensorType result);
  void AddOutput(Output output) { outputs_.push_back(output); }

  int num_values() const { return static_cast<int>(values_.size()); }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  // These throw std::out_of_range for an id that there is not, as kNoValue is: a rule may ask for
  // the type of an operand that is absent (rules::Guarded).
  const Value& value(ValueId id) const { return At(values_, id); }
  const TensorType& type(ValueId id) const { return value(id).type; }
  const Node& node(NodeId id) const { return At(nodes_, id); }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<ScalarKind>& scalars() const { return scalars_; }
  const std::vector<std::string>& sources() const { return sources_; }
  const std::vector<GridPtr>& grids() const { return grids_; }
  const std::string& grid_name(int g) const { return grid_names_[g]; }
  const std::vector<std::string>& grid_names() const { return grid_names_; }
  const Grid& grid(int g) const { return *grids_[g]; }
  // Result k of a node.
  ValueId result(NodeId id, int k = 0) const { return node(id).first_result + k; }

  // Passes annotate in place; they never change nodes or edges.
  // An input gets the manual axes of its annotation, before it has users.
  void Annotate(ValueId id, Annotation annotation);
  void ClearAnnotation(ValueId id) { values_[id].annotation.reset(); }
  void SetName(ValueId id, std::string name);  // Requires: no other value has the name
  void SetCut(NodeId id, int grid, std::vector<FactorCut> cut);

  // Users of each value, in node order; outputs are not users. O(size).
  std::vector<std::vector<NodeId>> Users() const;

  std::string ToString() const;
  // Errors: InvalidArgument "line 4: …" with the offending text.
  static absl::StatusOr<Graph> Parse(absl::string_view text);
  // 128 bits over everything that ToString prints, names and sources excepted.
  using Fingerprint = ir::Fingerprint;
  Fingerprint ComputeFingerprint() const;

 private:
  template <typename T>
  static const T& At(const std::vector<T>& list, int id) {
    const auto i = static_cast<size_t>(id);
    if (i >= list.size()) ThrowOutOfRange(i, list.size());
    return list[i];
  }
  ValueId AddValue(Value value);

  std::vector<GridPtr> grids_;
  std::vector<std::string> grid_names_;
  std::vector<ScalarKind> scalars_;
  std::vector<std::string> sources_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_;
  std::vector<Output> outputs_;
  int64_t next_number_ = 0;  // no value is named by this number or a later one
};

}  // namespace spmd::ir
