// SPDX-License-Identifier: Apache-2.0
// What is pending, as a graph: the one way in which a tape is lowered, for compiling and for
// looking.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/sharding/layout.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

// The meshes of the marks in the part of the tape that the outputs need.
std::vector<Mesh> MeshesOfMarks(const Tape& tape, const Needed& needed);

// Those of MeshesOfMarks, which name the axes, and those of the layouts in which that part of the
// tape takes its inputs.
std::vector<Mesh> MeshesNamed(const Meshes& known, const Tape& tape,
                              absl::Span<const OutputSpec> outputs, const Given* given = nullptr);

// Lowers what `outputs` need, in the grids of its meshes. `starts` are the records whose starts are
// passed at run time.
// Errors: those of Lower.
absl::StatusOr<Lowered> LowerTape(SessionState& state, const Tape& tape,
                                  absl::Span<const OutputSpec> outputs,
                                  absl::Span<const int> starts = {});

// The graph that a cut now would compile, if no program fits. Runs nothing.
struct Pending {
  std::vector<OutputSpec> outputs;
  Lowered lowered;
};
absl::StatusOr<Pending> LowerPending(SessionState& state);

// The layout that a pending value would have if it were cut now, as far as that follows from what
// PendingLayouts says is planned. Runs nothing. Planned once for all values, until something else
// is recorded, marked or dropped.
absl::StatusOr<Layout> ProvisionalLayout(SessionState& state, TapeId value);

}  // namespace spmd::trace
