// SPDX-License-Identifier: Apache-2.0
// Tape → ir::Graph. Only what the outputs need is lowered; inputs keep the tape's order.
//
// foreach ops become one element-wise op per tensor. The starts (csrc/trace/starts.h) of the
// records that `LowerOptions::starts` names become run-time scalars, numbered after the tape's own.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/trace/tape.h"

namespace spmd::trace {

struct OutputSpec {
  TapeId value;
  TapeId becomes = kNoId;  // input of the tape whose buffer it replaces
  bool may_stay_unreduced = false;
  // Whether its Buffers may take another form, and that form: the program returns the value viewed
  // in these sizes. Empty: as it is.
  bool may_be_apart = false;
  Dims apart = {};
};

// What the outputs depend on.
struct Needed {
  std::vector<bool> records, inputs;  // by number
  bool Has(const Tape& tape, TapeId value) const {
    const Origin& origin = tape.origin(value);
    return origin.record >= 0 ? records[origin.record] : inputs[origin.input];
  }
};
Needed NeededFor(const Tape& tape, absl::Span<const OutputSpec> outputs);

struct LowerOptions {
  const std::vector<Mesh>* meshes = nullptr;
  const Grid::Common* grids = nullptr;
  absl::Span<const int> starts = {};  // ascending
};

struct Lowered {
  ir::Graph graph;
  std::vector<int> inputs;  // tape input number of each graph input
  std::vector<int> starts;  // records whose starts are run-time scalars, in slot order
};

// Errors: InvalidArgument for a mark that does not fit its value.
absl::StatusOr<Lowered> Lower(const Tape& tape, absl::Span<const OutputSpec> outputs,
                              const LowerOptions& options);

// Attributes of a record's op: the arguments that are no tensors and say what is computed.
// `slot`: the first run-time scalar of the record.
Attributes AttributesOf(const Record& record);
Attr AttrOf(const ArgInfo& info, const c10::IValue& value);

// Number of the grid in which the mesh is written; its sharding there. Errors: ResolveSpec's.
absl::StatusOr<ir::Annotation> AnnotationOf(const Mark& mark, int rank, const LowerOptions& options,
                                            absl::string_view caller = "mark_sharding");

// --- foreach (lower_foreach.cc) ---
// The op that each tensor of a foreach op goes through, or null: "aten::_foreach_add.List" →
// "aten::add.Tensor".
const OpInfo* ElementOp(const OpInfo& foreach_op);
// Record `k`th element of a foreach record, as the arguments of its element op.
struct ElementCall {
  std::vector<TapeId> operands;
  Attributes attributes;
};
ElementCall ElementOf(const Record& record, const OpInfo& element, int k, int count);

}  // namespace spmd::trace
