// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/replan.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/part.h"
#include "csrc/partition/compile.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/resolve.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// The spec without the axes that `mesh` lacks; nullopt if it names parts of axes, whose sizes
// differ from mesh to mesh.
std::optional<PartitionSpec> OnMesh(PartitionSpec spec, const Mesh& mesh) {
  for (SpecEntry& entry : spec) {
    std::vector<SpecAxis> kept;
    for (const SpecAxis& axis : entry.axes) {
      const std::string& name = std::get<std::string>(axis);
      if (absl::StrContains(name, ':')) return std::nullopt;
      const auto& names = mesh.axis_names();
      if (std::find(names.begin(), names.end(), name) != names.end()) kept.push_back(axis);
    }
    entry.axes = std::move(kept);
  }
  return spec;
}

// Copies `from` with its annotations in terms of `mesh`.
class Rewriter {
 public:
  Rewriter(SessionState& state, const ir::Graph& from, const Mesh& mesh)
      : state_(state),
        from_(from),
        mesh_(mesh),
        set_(state.meshes.SetOf({mesh})),
        graph_(ir::EmptyLike(from, ir::Grids::kLeftOut)) {}

  absl::StatusOr<ir::Graph> Rewrite() {
    for (size_t g = 0; g < set_.grids.grids.size(); ++g) {
      graph_.AddGrid(set_.grids.grids[g], g == 0 ? "m" : absl::StrCat("m", g));
    }
    std::vector<ir::ValueId> value_of(from_.num_values(), ir::kNoValue);
    for (const ir::ValueId v : from_.inputs()) {
      value_of[v] = graph_.AddInput(from_.type(v), from_.value(v).name);
      SPMD_RETURN_IF_ERROR(Annotate(v, value_of[v]));
    }
    for (const ir::Node& node : from_.nodes()) {
      std::vector<ir::ValueId> operands;
      for (const ir::ValueId v : node.operands) {
        operands.push_back(v == ir::kNoValue ? ir::kNoValue : value_of[v]);
      }
      const ir::NodeId copy = ir::CopyNode(from_, node, operands, graph_);
      for (int r = 0; r < node.num_results; ++r) {
        const ir::ValueId v = node.first_result + r;
        value_of[v] = graph_.result(copy, r);
        SPMD_RETURN_IF_ERROR(Annotate(v, value_of[v]));
      }
    }
    for (ir::Output output : from_.outputs()) {
      output.value = value_of[output.value];
      if (output.becomes != ir::kNoValue) output.becomes = value_of[output.becomes];
      graph_.AddOutput(output);
    }
    return std::move(graph_);
  }

 private:
  absl::Status Annotate(ir::ValueId v, ir::ValueId to) {
    const auto& annotation = from_.value(v).annotation;
    if (!annotation.has_value()) return absl::OkStatus();
    const GridPtr& grid = from_.grids()[annotation->grid];
    const std::vector<Mesh> meshes = state_.meshes.MeshesOf(grid);
    if (meshes.empty()) return absl::OkStatus();  // of one device
    const auto spec = OnMesh(SpecOf(annotation->sharding, *grid, meshes.front()), mesh_);
    const bool committed = annotation->hold == ir::Hold::kCommitted;
    if (!spec.has_value()) {
      if (!committed) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("a mark shards over a part of an axis: ",
                       SpecToString(SpecOf(annotation->sharding, *grid, meshes.front()))));
    }
    const int rank = static_cast<int>(from_.type(v).dims.size());
    SPMD_ASSIGN_OR_RETURN(ir::Annotation made,
                          AnnotationOf({mesh_, *spec}, rank, {&set_.meshes, &set_.grids}, "plan"));
    made.hold = annotation->hold;
    graph_.Annotate(to, std::move(made));
    return absl::OkStatus();
  }

  SessionState& state_;
  const ir::Graph& from_;
  const Mesh& mesh_;
  const MeshSet set_;
  ir::Graph graph_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CompiledProgram>> Replan(const CompiledProgram& traced,
                                                        const Mesh& mesh,
                                                        const machine::Machine& machine) {
  SessionLock lock;
  SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<runtime::Backend> backend, TheBackend(*lock));
  auto made = std::make_shared<CompiledProgram>();
  made->number = traced.number;
  SPMD_ASSIGN_OR_RETURN(made->traced, Rewriter(*lock, traced.traced, mesh).Rewrite());
  partition::CompileOptions options = CompileOptionsFor(*lock, *backend);
  options.machine = &machine;
  SPMD_ASSIGN_OR_RETURN(made->compiled, partition::Compile(made->traced, options));
  SPMD_ASSIGN_OR_RETURN(
      made->loaded,
      runtime::LoadedProgram::Load(std::move(made->compiled.program), backend, LoadOptions(*lock)));
  return made;
}

absl::StatusOr<std::unique_ptr<OtherBackend>> OtherBackend::Use(const std::string& name) {
  SessionLock lock;
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend,
                        runtime::MakeBackend(name, std::nullopt));
  SPMD_RETURN_IF_ERROR(Cut(*lock, "plan"));
  if (lock->in_flight.queue != nullptr) SPMD_RETURN_IF_ERROR(ReportAll(*lock));
  lock->programs.Clear();
  lock->diagnostics.steps.KeepAll(true);
  Devices other;
  other.backend = std::move(backend);
  other.backend_name = name;
  return std::unique_ptr<OtherBackend>(
      new OtherBackend(std::exchange(lock->devices, std::move(other)), lock->meshes));
}

OtherBackend::~OtherBackend() {
  SessionLock lock;
  Cut(*lock, "plan").IgnoreError();
  if (lock->in_flight.queue != nullptr) ReportAll(*lock).IgnoreError();
  lock->programs.Clear();
  lock->diagnostics.steps.KeepAll(false);
  lock->devices = std::move(devices_before_);
  lock->meshes = std::move(meshes_before_);
}

}  // namespace spmd::trace
