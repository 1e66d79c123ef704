// SPDX-License-Identifier: Apache-2.0
// Marks, shards and layouts of tensors.

#include <algorithm>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/marking.h"
#include "csrc/trace/run/tensor_layout.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

std::string LayoutName(at::Layout layout) {
  std::ostringstream text;
  text << layout;
  return absl::AsciiStrToLower(text.str());
}

}  // namespace

absl::Status CheckOurs(const char* caller, const at::Tensor& tensor) {
  if (Buffer::IsOurs(tensor)) return absl::OkStatus();
  if (tensor.layout() != at::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat(caller, " takes no sparse tensor; got one with layout ",
                     LayoutName(tensor.layout()), "; give it the values, t.",
                     tensor.is_sparse() ? "_" : "", "values(), whose nnz can be sharded"));
  }
  return absl::InvalidArgumentError(absl::StrCat(caller, ": the tensor is on '",
                                                 tensor.device().str(),
                                                 "'; move it first, with tensor.to('spmd')"));
}

namespace {

// Requires: the layout's grid refines the mesh.
ShardingInfo Described(const Layout& layout, const Mesh& mesh) {
  const Grid& grid = *layout.grid();
  ShardingInfo info{mesh, SpecOf(layout.sharding().Closed(), grid, mesh), false, false, {}};
  if (layout.sharding().IsUnreduced()) {
    Sharding terms = Sharding::Replicated(1);  // the axes, as a spec calls them
    terms.dims[0].axes = layout.sharding().unreduced;
    const PartitionSpec named = SpecOf(terms, grid, mesh);
    for (const SpecAxis& axis : named[0].axes) {
      info.unreduced.push_back(std::get<std::string>(axis));
    }
  }
  return info;
}

// The spec, with blocks, of a view of stored data that merges dimensions; nullopt for others.
std::optional<PartitionSpec> SpecInBlocks(const at::Tensor& tensor, const Mesh& mesh) {
  Buffer* const buffer = BufferOf(tensor);
  if (buffer->holds_nothing() || buffer->pending() || NotesOf(*buffer) != nullptr) {
    return std::nullopt;
  }
  const ValuePtr& value = buffer->value();
  if (value->layout == nullptr || !value->layout->grid()->Refines(mesh)) return std::nullopt;
  const Sharding& sharding = value->layout->sharding();
  if (sharding.DimAxes() == 0) return std::nullopt;
  return MergedSpec(SpecOf(sharding.Closed(), *value->layout->grid(), mesh),
                    RecipeOf(buffer, tensor), buffer->form.sizes);
}

bool NamesParts(const ShardingInfo& info) {
  const auto is_part = [](const std::string& name) { return absl::StrContains(name, ':'); };
  if (std::any_of(info.unreduced.begin(), info.unreduced.end(), is_part)) return true;
  for (const SpecEntry& entry : info.spec) {
    for (const SpecAxis& axis : entry.axes) {
      if (is_part(std::get<std::string>(axis))) return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckSpec(SessionState& state, const char* caller, const Mesh& mesh,
                       const PartitionSpec& spec, size_t rank) {
  const MeshSet set = state.meshes.SetOf({mesh});
  return AnnotationOf({mesh, spec}, static_cast<int>(rank), {&set.meshes, &set.grids}, caller)
      .status();
}

absl::Status MarkedAlready(const Mark& mark, const Mark& given, absl::string_view caller) {
  return absl::InvalidArgumentError(absl::StrCat(
      caller, ": the tensor is marked ", SpecToString(mark.spec), " on mesh ",
      mark.mesh.AxesToString(), " already; got ", SpecToString(given.spec), " on mesh ",
      given.mesh.AxesToString(), ". Use reshard for a copy, or clear_sharding first"));
}

namespace {

// Marks a view that is a part of the stored tensor, or all of it in a form that no spec expresses.
absl::Status MarkPart(SessionState& state, const at::Tensor& tensor, const MarkPtr& mark) {
  Buffer* const buffer = BufferOf(tensor);
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  if (MarkNotes* const notes = NotesOf(*buffer)) {
    for (MarkNotes::Part& part : notes->parts) {
      if (!SameRecipe(part.view, recipe)) continue;
      const bool same = SameMark(part.mark, mark);
      if (!same && !part.copied) return MarkedAlready(*part.mark, *mark);
      part = {recipe, mark, /*copied=*/false};
      if (!same && buffer->pending()) state.tape->Annotate(Read(state, tensor), mark);
      return absl::OkStatus();
    }
  }
  // The mark applies wherever the part is read from now on. A pending value may have been read.
  if (buffer->pending()) state.tape->Annotate(Read(state, tensor), mark);
  MakeNotes(*buffer).parts.push_back({recipe, mark, /*copied=*/false});
  return absl::OkStatus();
}

// `bound` says that the Buffer's value is annotated with another mark already.
void SetMark(SessionState& state, Buffer* buffer, const MarkPtr& mark, bool bound) {
  Tape& tape = *state.tape;
  buffer->mark = nullptr;
  TapeId id = kNoId;
  if (!buffer->holds_nothing()) {
    const ValuePtr value = buffer->value();
    if (tape.IsHeldBy(*buffer, value->id)) {
      id = value->id;
    } else if (LiesOtherwise(*value, *mark)) {
      id = tape.Use(value, buffer);  // with its present layout
    } else if (value.use_count() > 2) {
      buffer->mark = mark;  // another Buffer holds it, too, and may have another mark
      id = tape.Use(value, buffer);
    }
  }
  buffer->mark = mark;
  buffer->settled.reset();
  if (id == kNoId) return;
  // A value that something else holds, too, is copied first.
  if (bound || tape.origin(id).record < 0 || tape.CountHolders(id) > 1) {
    BindBuffer(state, buffer, EmitClone(state, id));
  } else {
    tape.Annotate(id, mark);
  }
}

// The mark in terms of the tensor, if a spec can express it, else in terms of its base.
MarkPtr OwnMark(const at::Tensor& tensor) {
  const MarkPtr own = MarkOf(tensor);
  return own == nullptr ? BufferOf(tensor)->mark : own;
}

// Whether a program computed the value, and it is not a parameter. A mark on another form of it
// means the same whether that program has run or is pending.
bool IsActivation(const at::Tensor& tensor) {
  return BufferOf(tensor)->value()->origin_output >= 0 && !IsParameter(tensor);
}

// `given` is the user's mark, and `mark` what it means for `tensor`.
absl::Status MarkTensor(SessionState& state, const at::Tensor& tensor, const MarkPtr& mark,
                        const MarkPtr& given) {
  Buffer* const buffer = BufferOf(tensor);
  const Dims base(buffer->form.sizes.begin(), buffer->form.sizes.end());
  std::optional<PartitionSpec> base_spec = SpecOfBase(mark->spec, RecipeOf(buffer, tensor), base);
  MarkNotes* const notes = NotesOf(*buffer);
  const bool copied = notes != nullptr && notes->copied;
  if (!base_spec.has_value() && IsWhole(tensor)) {
    if (buffer->mark != nullptr && !copied && !buffer->pending() && !IsActivation(tensor)) {
      return MarkedAlready(*OwnMark(tensor), *given);
    }
    if (buffer->mark == nullptr || copied) {
      // A reshape of the whole storage: the storage takes its form, and other views derive from it.
      buffer->mark = nullptr;
      RebaseBytes(state, buffer, FormOf(tensor));
      base_spec = mark->spec;
    }
  }
  if (!base_spec.has_value()) return MarkPart(state, tensor, mark);
  const auto of_base =
      std::make_shared<const Mark>(Mark{mark->mesh, *base_spec, IsParameter(tensor), mark->name});
  const bool waits = MarkWaits(*buffer);
  if (buffer->mark != nullptr && SameMark(buffer->mark, of_base) && !waits) {
    if (notes != nullptr) notes->copied = false;
    return absl::OkStatus();
  }
  if (buffer->mark != nullptr && !copied) return MarkedAlready(*OwnMark(tensor), *given);
  // Another mark constrains the value already.
  const bool bound = buffer->mark != nullptr && !waits;
  if (notes != nullptr) notes->copied = notes->waits = false;
  SetMark(state, buffer, of_base, bound);
  return absl::OkStatus();
}

// "parameter 'fc.weight' that shard_module marked at train.py:20".
std::string NameOfMarked(const SessionState& state, absl::string_view caller) {
  const std::vector<absl::string_view> parts = absl::StrSplit(caller, ": ");
  const std::string line = state.hooks.current_line != nullptr ? state.hooks.current_line() : "";
  return absl::StrCat(parts.size() > 1 ? parts[1] : "the tensor", " that ", parts[0], " marked",
                      line.empty() ? "" : " at ", line);
}

absl::Status MarkBlocks(SessionState& state, const at::Tensor& tensor, const MarkPtr& given) {
  SPMD_ASSIGN_OR_RETURN(const MarkedBlocks marked,
                        FormInBlocks(state, "mark_sharding", tensor, *given));
  return MarkTensor(state, marked.view, marked.mark, given);
}

}  // namespace

absl::Status Session::MarkSharding(const at::Tensor& tensor, const Mesh& mesh,
                                   const PartitionSpec& spec, absl::string_view caller) {
  SessionLock lock;
  if (!IsUnused(*lock, tensor)) SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_RETURN_IF_ERROR(CheckOurs("mark_sharding", tensor));
  SPMD_RETURN_IF_ERROR(NoteMesh(*lock, mesh));
  // Errors of the spec are in terms of the tensor that was given.
  SPMD_RETURN_IF_ERROR(CheckSpec(*lock, "mark_sharding", mesh, spec, tensor.dim()));
  session_flags.used = true;
  const auto given =
      std::make_shared<const Mark>(Mark{mesh, spec, false, NameOfMarked(*lock, caller)});
  if (HasBlocks(spec)) return MarkBlocks(*lock, tensor, given);
  return MarkTensor(*lock, tensor, given, given);
}

absl::Status Session::ClearSharding(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_RETURN_IF_ERROR(CheckOurs("clear_sharding", tensor));
  Buffer* buffer = BufferOf(tensor);
  MarkNotes* const notes = NotesOf(*buffer);
  if (notes != nullptr) {
    const RecipePtr recipe = RecipeOf(buffer, tensor);
    const auto is_this = [&](const MarkNotes::Part& part) { return SameRecipe(part.view, recipe); };
    if (std::erase_if(notes->parts, is_this) > 0) return absl::OkStatus();
    notes->copied = notes->waits = false;
    notes->mark_before = nullptr;
  }
  buffer->mark.reset();
  buffer->settled.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ShardingInfo>> Session::ShardingOf(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_RETURN_IF_ERROR(CheckOurs("sharding_of", tensor));
  if (const MarkPtr mark = MarkOf(tensor)) {
    return ShardingInfo{mark->mesh, mark->spec, /*committed=*/true, /*provisional=*/false, {}};
  }
  if (!lock->meshes.latest().has_value()) return std::nullopt;
  ShardingInfo whole{*lock->meshes.latest(), PartitionSpec(tensor.dim()), false, true, {}};
  SPMD_ASSIGN_OR_RETURN(const std::optional<TensorLayout> found, LayoutOfTensor(*lock, tensor));
  if (!found.has_value()) return whole;
  whole.provisional = found->provisional;
  const Layout& layout = found->layout;
  // Prefers a mesh after which the layout's axes are named, and among these one in which the spec
  // needs whole axes only; if there is none, another mesh that was used lately.
  for (const std::vector<Mesh>& meshes :
       {lock->meshes.MeshesOf(layout.grid()), lock->meshes.Recent()}) {
    std::optional<ShardingInfo> in_parts;
    for (const Mesh& mesh : meshes) {
      if (!layout.grid()->Refines(mesh)) continue;
      ShardingInfo info = Described(layout, mesh);
      if (auto spec = SpecInBlocks(tensor, mesh)) info.spec = *std::move(spec);
      info.provisional = found->provisional;
      if (!NamesParts(info)) return info;
      if (!in_parts.has_value()) in_parts = std::move(info);
    }
    if (in_parts.has_value()) return in_parts;
  }
  return whole;
}

namespace {

// What precedes the resharding of a tensor to a value with `rank` dimensions.
absl::Status BeginReshard(SessionState& state, const at::Tensor& tensor, size_t rank,
                          const Mark& mark, bool fits) {
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(state));
  SPMD_RETURN_IF_ERROR(CheckOurs("reshard", tensor));
  if (!fits || rank != mark.spec.size() || state.meshes.latest() != mark.mesh) {
    SPMD_RETURN_IF_ERROR(NoteMesh(state, mark.mesh));
    SPMD_RETURN_IF_ERROR(CheckSpec(state, "reshard", mark.mesh, mark.spec, rank));
  }
  session_flags.used = true;
  return absl::OkStatus();
}

// Binds `out` to a copy of `value` that has the mark. In a backward pass the mark binds this value,
// and not what is written to the tensor later: autograd adds the other gradients of the same value
// to it in place.
void BindResharded(SessionState& state, const at::Tensor& out, const MarkPtr& mark, TapeId value) {
  Buffer* const buffer = BufferOf(out);
  buffer->mark = mark;
  BindBuffer(state, buffer, EmitClone(state, value));
  ++state.call.annotations;
  state.call.result_mark = mark;
  if (GraphTask() >= 0) buffer->mark.reset();
}

}  // namespace

absl::StatusOr<at::Tensor> Session::ReshardApart(const at::Tensor& tensor, const MarkPtr& mark,
                                                 bool fits, const Dims& apart,
                                                 absl::Span<const int64_t> order) {
  SessionLock lock;
  const size_t rank = static_cast<size_t>(tensor.dim());
  SPMD_RETURN_IF_ERROR(BeginReshard(*lock, tensor, rank, *mark, fits));
  TapeId value = EmitClone(*lock, Read(*lock, tensor));
  lock->tape->Annotate(value, mark);
  ++lock->call.annotations;
  if (!apart.empty()) value = EmitView(*lock, value, apart);
  if (!order.empty()) value = EmitPermute(*lock, value, order);
  const Dims dims = TypeOf(*lock, value).dims;
  const at::IntArrayRef sizes(dims.data(), dims.size());
  return NewTensor(*lock, TensorMeta::Contiguous(tensor.scalar_type(), sizes), value);
}

absl::StatusOr<at::Tensor> Session::ReshardTogether(const at::Tensor& tensor, const MarkPtr& mark,
                                                    bool fits, const Dims& whole,
                                                    absl::Span<const int64_t> order) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(BeginReshard(*lock, tensor, whole.size(), *mark, fits));
  TapeId value = Read(*lock, tensor);
  if (!order.empty()) value = EmitPermute(*lock, value, order);
  if (!(TypeOf(*lock, value).dims == whole)) value = EmitView(*lock, value, whole);
  const at::IntArrayRef sizes(whole.data(), whole.size());
  at::Tensor out = NewTensor(TensorMeta::Contiguous(tensor.scalar_type(), sizes), nullptr);
  BindResharded(*lock, out, mark, value);
  return out;
}

absl::StatusOr<at::Tensor> Session::Reshard(const at::Tensor& tensor, const MarkPtr& mark,
                                            bool fits) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(BeginReshard(*lock, tensor, static_cast<size_t>(tensor.dim()), *mark, fits));
  const TensorMeta meta = TensorMeta::Contiguous(tensor.scalar_type(), tensor.sizes());
  at::Tensor out = NewTensor(meta, nullptr);
  MarkedBlocks marked{out, mark};
  if (HasBlocks(mark->spec)) {
    SPMD_ASSIGN_OR_RETURN(marked, FormInBlocks(*lock, "reshard", out, *mark));
  }
  TapeId value = Read(*lock, tensor);
  const TensorType type = TypeOf(marked.view);
  if (!(TypeOf(*lock, value) == type)) {
    value = EmitView(*lock, value, type.dims);
  }
  BindResharded(*lock, out, marked.mark, value);
  return out;
}

}  // namespace spmd::trace
