// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/pending_graph.h"

#include <algorithm>
#include <utility>

#include "csrc/partition/compile.h"
#include "csrc/trace/run/liveness.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// Those that MeshesNamed gives; if there are none, those of the layouts of the inputs; else the
// mesh that was used last.
MeshSet MeshesOf(Meshes& known, const Tape& tape, absl::Span<const OutputSpec> outputs) {
  std::vector<Mesh> meshes = MeshesNamed(known, tape, outputs);
  const Needed needed = NeededFor(tape, outputs);
  for (size_t k = 0; meshes.empty() && k < tape.inputs().size(); ++k) {
    const LayoutPtr& layout = tape.value(tape.inputs()[k].id)->layout;
    if (needed.inputs[k] && layout != nullptr) meshes = known.MeshesOf(layout->grid());
  }
  if (meshes.empty() && known.latest().has_value()) {
    meshes.push_back(*known.latest());
  }
  return known.SetOf(meshes);
}

}  // namespace

std::vector<Mesh> MeshesOfMarks(const Tape& tape, const Needed& needed) {
  std::vector<Mesh> meshes;
  for (size_t k = 0; k < tape.inputs().size(); ++k) {
    const MarkPtr& mark = tape.inputs()[k].mark;
    if (needed.inputs[k] && mark != nullptr) meshes.push_back(mark->mesh);
  }
  for (const Annotation& a : tape.annotations()) {
    if (needed.Has(tape, a.value)) meshes.push_back(a.mark->mesh);
  }
  for (size_t r = 0; r < tape.records().size(); ++r) {
    const Record& record = tape.records()[r];
    if (!needed.records[r]) continue;
    if (const BorderCall* const border = BorderOf(*record.op, record.args)) {
      meshes.push_back(border->mesh);
    }
  }
  return meshes;
}

std::vector<Mesh> MeshesNamed(const Meshes& known, const Tape& tape,
                              absl::Span<const OutputSpec> outputs) {
  const Needed needed = NeededFor(tape, outputs);
  const std::vector<bool> overwritten = OverwrittenInputs(tape, outputs);
  std::vector<Mesh> meshes = MeshesOfMarks(tape, needed);
  for (const OutputSpec& o : outputs) {
    if (o.like != nullptr) meshes.push_back(o.like->mesh);
  }
  // At most this many meshes of layouts are added, so that a grid is the common refinement of a few
  // meshes.
  constexpr size_t kMostOfLayouts = 16;
  size_t of_layouts = 0;
  for (size_t k = 0; k < tape.inputs().size(); ++k) {
    if (!needed.inputs[k]) continue;
    const LayoutPtr& layout = tape.LayoutToTake(k, overwritten[k]);
    if (layout == nullptr || of_layouts >= kMostOfLayouts) continue;
    for (const Mesh& mesh : known.MeshesOf(layout->grid())) {
      if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
      meshes.push_back(mesh);
      ++of_layouts;
    }
  }
  return meshes;
}

absl::StatusOr<Lowered> LowerTape(SessionState& state, const Tape& tape,
                                  absl::Span<const OutputSpec> outputs,
                                  absl::Span<const int> starts) {
  const MeshSet set = MeshesOf(state.meshes, tape, outputs);
  return Lower(tape, outputs, {&set.meshes, &set.grids, starts});
}

absl::StatusOr<Pending> LowerPending(SessionState& state) {
  Tape& tape = *state.tape;
  tape.StopFollowing();
  ++state.diagnostics.statistics.plans_of_pending;
  Pending pending;
  pending.outputs = FindLive(tape).outputs;
  SPMD_ASSIGN_OR_RETURN(pending.lowered, LowerTape(state, tape, pending.outputs));
  return pending;
}

namespace {

absl::Status PlanPending(SessionState& state) {
  SPMD_ASSIGN_OR_RETURN(const Pending pending, LowerPending(state));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  SPMD_ASSIGN_OR_RETURN(
      partition::Compiled compiled,
      partition::Compile(pending.lowered.graph, CompileOptionsFor(state, *backend)));
  PendingLayouts& known = state.pending_layouts;
  known = {state.tape->number(), state.tape->changes(), ProgramOptionsOf(state), {}};
  for (size_t k = 0; k < pending.outputs.size(); ++k) {
    known.layouts.emplace_back(pending.outputs[k].value,
                               compiled.program.LayoutOf(compiled.program.outputs[k].value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> ProvisionalLayout(SessionState& state, TapeId value) {
  const PendingLayouts& known = state.pending_layouts;
  if (known.tape != state.tape->number() || known.changes != state.tape->changes() ||
      known.options != ProgramOptionsOf(state)) {
    SPMD_RETURN_IF_ERROR(PlanPending(state));
  }
  const auto it = std::find_if(known.layouts.begin(), known.layouts.end(),
                               [&](const auto& layout) { return layout.first == value; });
  if (it == known.layouts.end()) return absl::InternalError("the value is not alive");
  return it->second;
}

}  // namespace spmd::trace
