// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/saved_marks.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "csrc/mesh/mesh_text.h"
#include "csrc/sharding/spec_text.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Metadata = std::unordered_map<std::string, bool>;
constexpr absl::string_view kPrefix = "torch_spmd mark ";

absl::StatusOr<MarkPtr> ParseMark(absl::string_view text) {
  Scanner in(text);
  SPMD_ASSIGN_OR_RETURN(Mesh mesh, ParseMeshText(in));
  SPMD_ASSIGN_OR_RETURN(PartitionSpec spec, ParseSpecText(in));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  const GridPtr grid = Grid::Of(mesh);
  SPMD_RETURN_IF_ERROR(
      ResolveSpec("torch.load", spec, mesh, *grid, static_cast<int>(spec.size())).status());
  return std::make_shared<const Mark>(Mark{std::move(mesh), std::move(spec)});
}

void Save(const at::Tensor& tensor, Metadata& metadata) {
  if (!Buffer::IsOurs(tensor)) return;
  const SessionLock lock;
  if (const std::string text = SavedMark(tensor); !text.empty()) metadata[text] = true;
}

void Load(const at::Tensor& tensor, Metadata& metadata) {
  if (!Buffer::IsOurs(tensor)) return;
  SessionLock lock;
  for (const auto& [text, set] : metadata) GiveSavedMark(*lock, tensor, text);
}

}  // namespace

std::string SavedMark(const at::Tensor& tensor) {
  const MarkPtr mark = MarkOf(tensor);
  if (mark == nullptr) return "";
  return absl::StrCat(kPrefix, MeshText(mark->mesh), " ", SpecToString(mark->spec));
}

void GiveSavedMark(SessionState& state, const at::Tensor& tensor, const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kPrefix)) return;
  const absl::StatusOr<MarkPtr> mark = ParseMark(rest);
  if (!mark.ok()) {
    if (state.hooks.warn != nullptr && state.diagnostics.FirstTime(text)) {
      state.hooks.warn(absl::StrCat("torch.load: the mark '", rest, "' is not kept, since ",
                                    mark.status().message()));
    }
    return;
  }
  if ((*mark)->spec.size() != static_cast<size_t>(tensor.dim())) return;
  GiveMark(state, tensor, *mark, "torch.load");
}

void RegisterSavedMarks() { torch::jit::TensorBackendMetaRegistry(kDeviceType, &Save, &Load); }

}  // namespace spmd::trace
