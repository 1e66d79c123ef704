// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/pending_work.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/run/liveness.h"
#include "csrc/trace/run/pending_graph.h"
#include "csrc/trace/session/devices.h"
#include "csrc/util/status.h"

namespace spmd::trace {

PendingWork FindPendingWork(SessionState& state) {
  Tape& tape = *state.tape;
  tape.EndFollowing();
  const std::vector<OutputSpec> outputs = FindLive(tape).outputs;
  const Needed needed = NeededFor(tape, outputs);
  PendingWork work;
  work.empty = std::none_of(needed.records.begin(), needed.records.end(), [](bool n) { return n; });
  work.key = tape.key();
  work.meshes = MeshesNamed(state.meshes, tape, outputs);
  std::vector<bool> annotated(tape.num_values());
  for (const Annotation& a : tape.annotations()) annotated[a.value] = true;
  for (size_t k = 0; k < tape.inputs().size(); ++k) {
    const TapeInput& input = tape.inputs()[k];
    const bool is_free = needed.inputs[k] && input.mark == nullptr && !annotated[input.id] &&
                         input.settled == nullptr && input.left == nullptr;
    work.key.Mix(is_free ? 1 : 0);
    if (is_free) work.free.push_back({static_cast<int>(k), tape.type(input.id)});
  }
  return work;
}

absl::StatusOr<TracedGraph> TracePending(SessionState& state, const Mesh& mesh) {
  Tape& tape = *state.tape;
  tape.EndFollowing();
  const std::vector<OutputSpec> outputs = FindLive(tape).outputs;
  const std::vector<Mesh> meshes = WithFirst(mesh, MeshesNamed(state.meshes, tape, outputs));
  TracedGraph traced{.graph = {}, .inputs = {}, .mesh = mesh, .meshes = state.meshes.SetOf(meshes)};
  SPMD_ASSIGN_OR_RETURN(Lowered lowered,
                        Lower(tape, outputs, {&traced.meshes.meshes, &traced.meshes.grids, {}}));
  traced.inputs.assign(tape.inputs().size(), ir::kNoValue);
  for (size_t k = 0; k < lowered.inputs.size(); ++k) {
    traced.inputs[lowered.inputs[k]] = lowered.graph.inputs()[k];
  }
  traced.graph = std::move(lowered.graph);
  return traced;
}

absl::Status MarkPending(SessionState& state, const Mesh& mesh,
                         absl::Span<const std::pair<int, PartitionSpec>> marks) {
  SPMD_RETURN_IF_ERROR(NoteMesh(state, mesh));
  Tape& tape = *state.tape;
  const MeshSet set = state.meshes.SetOf({mesh});
  for (const auto& [number, spec] : marks) {
    if (number < 0 || number >= static_cast<int>(tape.inputs().size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", number, " of pending work, which has ", tape.inputs().size()));
    }
    const TapeId id = tape.inputs()[number].id;
    const auto mark = std::make_shared<const Mark>(Mark{mesh, spec});
    const int rank = static_cast<int>(tape.type(id).dims.size());
    SPMD_RETURN_IF_ERROR(
        AnnotationOf(*mark, rank, {&set.meshes, &set.grids, {}}, "automatic sharding").status());
    tape.Annotate(id, mark);
  }
  return absl::OkStatus();
}

bool IsReadByPending(const SessionState& state, const c10::Storage& storage) {
  const Buffer* const buffer = Buffer::Of(storage);
  const Value* const value = buffer == nullptr ? nullptr : buffer->made();
  return value != nullptr && !value->pending && value->origin_output < 0 &&
         value->tape == state.tape->number();
}

}  // namespace spmd::trace
