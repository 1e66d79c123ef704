// SPDX-License-Identifier: Apache-2.0
// Lowers a tape to an ir::Graph. Only what the outputs need is lowered; inputs keep the tape's
// order.
//
// A foreach op becomes one element-wise op per tensor. The starts (csrc/trace/tape/starts.h) of the
// records that `LowerOptions::starts` names become run-time scalars, numbered after the tape's own.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/sharding/layout.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

struct OutputSpec {
  TapeId value;
  TapeId becomes = kNoId;  // the input of the tape whose Buffer it takes
  bool may_stay_unreduced = false;
  // Whether its Buffers may take another form, and that form: the program returns the value viewed
  // with the sizes `apart`. If these are empty, it returns the value as it is.
  bool may_be_apart = false;
  Dims apart = {};
  MarkPtr like = nullptr;  // the mark of the parameter that it is the gradient of, or null
  bool held = false;       // see ir::Output
};

// By input of the tape: whether an output takes its Buffer.
std::vector<bool> OverwrittenInputs(const Tape& tape, absl::Span<const OutputSpec> outputs);

// Values of the tape with the layouts in which they are taken as they are, not computed: those
// that records before `first_record` made.
struct Given {
  int first_record = 0;
  absl::flat_hash_map<TapeId, Layout> layouts;
  const Layout* Find(const Tape& tape, TapeId value) const {
    if (tape.origin(value).record >= first_record) return nullptr;
    const auto it = layouts.find(value);
    return it == layouts.end() ? nullptr : &it->second;
  }
};

// The records and inputs on which the outputs depend.
struct Needed {
  std::vector<bool> records, inputs;  // by number
  int first_record = 0;               // no earlier one is needed
  std::vector<TapeId> given;          // the values that are taken as given, each once
  bool Has(const Tape& tape, TapeId value) const {
    const Origin& origin = tape.origin(value);
    return origin.record >= 0 ? records[origin.record] : inputs[origin.input];
  }
};
Needed NeededFor(const Tape& tape, absl::Span<const OutputSpec> outputs,
                 const Given* given = nullptr);

struct LowerOptions {
  const std::vector<Mesh>* meshes = nullptr;
  const Grid::Common* grids = nullptr;
  absl::Span<const int> starts = {};  // ascending
  const Given* given = nullptr;       // none if null
};

struct Lowered {
  ir::Graph graph;
  std::vector<int> inputs;  // tape input number of each graph input; -1 if it is a given value
  std::vector<int> starts;  // records whose starts are run-time scalars, in slot order
};

// Errors: InvalidArgument if a mark on `tape` does not fit its value.
absl::StatusOr<Lowered> Lower(const Tape& tape, absl::Span<const OutputSpec> outputs,
                              const LowerOptions& options);

// The attributes of a record's op: the arguments that are not tensors and say what is computed.
Attributes AttributesOf(const Record& record);

// The annotation for `mark`: the number of the grid in which its mesh is written, and its sharding
// there.
// Errors: those of ResolveSpec for `mark` and `rank`.
absl::StatusOr<ir::Annotation> AnnotationOf(const Mark& mark, int rank, const LowerOptions& options,
                                            absl::string_view caller = "mark_sharding");

// A copy of the value with the annotation, so that the program may have the value itself otherwise.
// The value, if it has this annotation.
ir::ValueId CopyWith(ir::Graph& graph, ir::ValueId v, ir::Annotation annotation);

}  // namespace spmd::trace
