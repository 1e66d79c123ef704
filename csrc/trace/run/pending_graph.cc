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
                              absl::Span<const OutputSpec> outputs, const Given* given) {
  const Needed needed = NeededFor(tape, outputs, given);
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
  Pending pending;
  pending.outputs = FindLive(tape).outputs;
  SPMD_ASSIGN_OR_RETURN(pending.lowered, LowerTape(state, tape, pending.outputs));
  return pending;
}

namespace {

// The first record from `first` on behind which nothing is read that was made before it and whose
// layout no question found: what nothing held when it was asked.
int FirstToPlan(const Tape& tape, const PendingLayouts& known, int first) {
  for (int r = first; r < known.records; ++r) {
    for (const TapeId id : tape.records()[r].operands) {
      if (id == kNoId || known.values.layouts.contains(id)) continue;
      const int made = tape.origin(id).record;
      if (made >= 0 && made < first) first = r + 1;
    }
  }
  return first;
}

// Forgets what does not hold any more, and chooses the records that are planned now.
void BeginPlan(SessionState& state, const Tape& tape, PendingLayouts& known) {
  const ProgramOptions options = ProgramOptionsOf(state);
  if (known.tape != tape.number() || known.options != options) {
    known = {.tape = tape.number(), .options = options};
  }
  const size_t annotations = tape.annotations().size();
  for (; known.annotations < annotations; ++known.annotations) {
    known.values.layouts.erase(tape.annotations()[known.annotations].value);
  }
  const int records = static_cast<int>(tape.records().size());
  const int again = std::max(0, records - PendingLayouts::kPlannedAgain);
  known.values.first_record = FirstToPlan(tape, known, std::min(known.records, again));
}

// The values that are alive among those that are planned now, and `asked`.
std::vector<OutputSpec> OutputsOf(const Tape& tape, const PendingLayouts& known, TapeId asked) {
  const size_t begin = known.values.first_record;
  const TapeId first = begin < tape.records().size() ? tape.records()[begin].first_result
                                                     : static_cast<TapeId>(tape.num_values());
  std::vector<OutputSpec> outputs = FindLive(tape, {.first = first}).outputs;
  if (asked < first && !known.values.layouts.contains(asked)) outputs.push_back({asked});
  return outputs;
}

bool HasAll(const std::vector<Mesh>& meshes, const std::vector<Mesh>& named) {
  return std::all_of(named.begin(), named.end(), [&](const Mesh& mesh) {
    return std::find(meshes.begin(), meshes.end(), mesh) != meshes.end();
  });
}

absl::Status PlanPending(SessionState& state, TapeId asked) {
  Tape& tape = *state.tape;
  tape.StopFollowing();
  PendingLayouts& known = state.pending_layouts;
  BeginPlan(state, tape, known);
  Given& given = known.values;
  std::vector<OutputSpec> outputs = OutputsOf(tape, known, asked);
  if (given.first_record > 0 &&
      !HasAll(known.meshes.meshes, MeshesNamed(state.meshes, tape, outputs, &given))) {
    // Another mesh changes the grids of all layouts.
    given = {};
    outputs = OutputsOf(tape, known, asked);
  }
  const int64_t changes = tape.changes();
  if (outputs.empty()) {
    known.changes = changes;  // something was dropped, and nothing else happened
    return absl::OkStatus();
  }
  if (given.first_record == 0) known.meshes = MeshesOf(state.meshes, tape, outputs);
  SPMD_ASSIGN_OR_RETURN(
      const Lowered lowered,
      Lower(tape, outputs,
            {.meshes = &known.meshes.meshes, .grids = &known.meshes.grids, .given = &given}));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled,
                        partition::Compile(lowered.graph, CompileOptionsFor(state, *backend)));
  for (size_t k = 0; k < outputs.size(); ++k) {
    given.layouts.insert_or_assign(outputs[k].value,
                                   compiled.program.LayoutOf(compiled.program.outputs[k].value));
  }
  known.records = static_cast<int>(tape.records().size());
  known.changes = changes;
  Statistics& statistics = state.diagnostics.statistics;
  ++statistics.plans_of_pending;
  statistics.planned_of_pending += lowered.graph.num_nodes();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Layout> ProvisionalLayout(SessionState& state, TapeId value) {
  const PendingLayouts& known = state.pending_layouts;
  const auto& layouts = known.values.layouts;
  if (known.tape != state.tape->number() || known.changes != state.tape->changes() ||
      known.options != ProgramOptionsOf(state) || !layouts.contains(value)) {
    SPMD_RETURN_IF_ERROR(PlanPending(state, value));
  }
  const auto it = layouts.find(value);
  if (it == layouts.end()) return absl::InternalError("the value is not alive");
  return it->second;
}

}  // namespace spmd::trace
