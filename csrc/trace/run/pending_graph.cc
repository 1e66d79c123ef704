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

// The meshes of the part of the tape that the outputs need: those of its marks, which name the
// axes, and those of the layouts in which it takes its inputs. If there are none, those of the
// layouts of its other inputs; else the mesh that was used last.
MeshSet MeshesOf(Meshes& known, const Tape& tape, absl::Span<const OutputSpec> outputs) {
  const Needed needed = NeededFor(tape, outputs);
  const std::vector<bool> overwritten = OverwrittenInputs(tape, outputs);
  std::vector<const TapeInput*> inputs;
  for (size_t k = 0; k < tape.inputs().size(); ++k) {
    if (needed.inputs[k]) inputs.push_back(&tape.inputs()[k]);
  }
  std::vector<Mesh> meshes;
  for (const TapeInput* input : inputs) {
    if (input->mark != nullptr) meshes.push_back(input->mark->mesh);
  }
  for (const Annotation& a : tape.annotations()) {
    if (needed.Has(tape, a.value)) meshes.push_back(a.mark->mesh);
  }
  // At most this many meshes of layouts are added, so that a grid is the common refinement of a few
  // meshes.
  constexpr size_t kMostOfLayouts = 16;
  size_t of_layouts = 0;
  const auto add_meshes_of = [&](const LayoutPtr& layout) {
    if (layout == nullptr || of_layouts >= kMostOfLayouts) return;
    for (const Mesh& mesh : known.MeshesOf(layout->grid())) {
      if (std::find(meshes.begin(), meshes.end(), mesh) != meshes.end()) continue;
      meshes.push_back(mesh);
      ++of_layouts;
    }
  };
  for (const TapeInput* input : inputs) {
    add_meshes_of(input->LayoutToTake(overwritten[input - tape.inputs().data()]));
  }
  for (size_t k = 0; meshes.empty() && k < inputs.size(); ++k) {
    add_meshes_of(tape.value(inputs[k]->id)->layout);
  }
  if (meshes.empty() && known.latest().has_value()) {
    meshes.push_back(*known.latest());
  }
  return known.SetOf(meshes);
}

}  // namespace

absl::StatusOr<Lowered> LowerTape(SessionState& state, const Tape& tape,
                                  absl::Span<const OutputSpec> outputs,
                                  absl::Span<const int> starts) {
  const MeshSet set = MeshesOf(state.meshes, tape, outputs);
  return Lower(tape, outputs, {&set.meshes, &set.grids, starts});
}

absl::StatusOr<Pending> LowerPending(SessionState& state) {
  Tape& tape = *state.tape;
  tape.StopFollowing();
  Pending pending;
  pending.outputs = FindLive(tape).outputs;
  SPMD_ASSIGN_OR_RETURN(pending.lowered, LowerTape(state, tape, pending.outputs));
  return pending;
}

absl::StatusOr<Layout> ProvisionalLayout(SessionState& state, TapeId value) {
  SPMD_ASSIGN_OR_RETURN(const Pending pending, LowerPending(state));
  const std::vector<OutputSpec>& outputs = pending.outputs;
  const auto it = std::find_if(outputs.begin(), outputs.end(),
                               [&](const OutputSpec& o) { return o.value == value; });
  if (it == outputs.end()) return absl::InternalError("the value is not alive");
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  SPMD_ASSIGN_OR_RETURN(
      partition::Compiled compiled,
      partition::Compile(pending.lowered.graph, CompileOptionsFor(state, *backend)));
  return compiled.program.LayoutOf(compiled.program.outputs[it - outputs.begin()].value);
}

}  // namespace spmd::trace
