// SPDX-License-Identifier: Apache-2.0
// Marks, shards and where tensors lie.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/session.h"
#include "csrc/trace/session_state.h"
#include "csrc/trace/tensor.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

std::string LayoutName(at::Layout layout) {
  std::ostringstream text;
  text << layout;
  return absl::AsciiStrToLower(text.str());
}

absl::Status CheckOurs(const char* caller, const at::Tensor& tensor) {
  if (Buffer::IsOurs(tensor)) return absl::OkStatus();
  if (tensor.layout() != at::kStrided) {
    return absl::InvalidArgumentError(absl::StrCat(
        caller, " takes no sparse tensor; got one with layout ", LayoutName(tensor.layout())));
  }
  return absl::InvalidArgumentError(absl::StrCat(caller, ": the tensor is on '",
                                                 tensor.device().str(),
                                                 "'; move it first, with tensor.to('spmd')"));
}

// Dimension of the base for each dimension of a view that shows all of it with dimensions permuted,
// inserted or left out only where they have size 1; nullopt otherwise. -1: an inserted dimension.
std::optional<std::vector<int>> BaseDims(const RecipePtr& recipe, const Dims& base) {
  std::vector<int> dims(base.size());
  for (size_t d = 0; d < base.size(); ++d) dims[d] = static_cast<int>(d);
  Dims current = base;
  for (const Recipe* step : Chain(recipe)) {
    std::vector<int> next;
    if (step->op == ViewOp::kPermute) {
      for (const int64_t d : step->ints) next.push_back(dims[d]);
    } else if (step->op == ViewOp::kReshape || step->op == ViewOp::kExpand ||
               step->op == ViewOp::kSlice) {
      // The same dimensions, ones aside.
      size_t d = 0;
      for (const int64_t n : step->result.dims) {
        while (d < current.size() && current[d] == 1 && n != 1) ++d;
        if (n == 1 && (d >= current.size() || current[d] != 1)) {
          next.push_back(-1);
        } else if (d < current.size() && current[d] == n) {
          next.push_back(dims[d++]);
        } else {
          return std::nullopt;
        }
      }
      while (d < current.size() && current[d] == 1) ++d;
      if (d != current.size()) return std::nullopt;
    } else if (step->op != ViewOp::kConj && step->op != ViewOp::kNeg) {
      return std::nullopt;
    }
    if (!next.empty() || step->result.dims.empty()) dims = std::move(next);
    current = step->result.dims;
  }
  return dims;
}

// What a mark on the view says of the base.
std::optional<PartitionSpec> BaseSpec(const PartitionSpec& spec, const std::vector<int>& dims,
                                      size_t base_rank) {
  PartitionSpec out(base_rank);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] >= 0) {
      out[dims[d]] = spec[d];
    } else if (!spec[d].axes.empty()) {
      return std::nullopt;
    }
  }
  return out;
}

PartitionSpec ViewSpec(const PartitionSpec& spec, const std::vector<int>& dims) {
  PartitionSpec out(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] >= 0) out[d] = spec[dims[d]];
  }
  return out;
}

absl::StatusOr<Layout> LayoutOfMark(Session::State& state, const Mark& mark, const Dims& dims) {
  const MeshSet set = state.meshes.SetOf({mark.mesh});
  SPMD_ASSIGN_OR_RETURN(ir::Annotation a, AnnotationOf(mark, static_cast<int>(dims.size()),
                                                       {&set.meshes, &set.grids}));
  return Layout(set.grids.grids[a.grid], a.sharding.Closed(), dims);
}

absl::Status CheckSpec(Session::State& state, const char* caller, const Mesh& mesh,
                       const PartitionSpec& spec, size_t rank) {
  const MeshSet set = state.meshes.SetOf({mesh});
  return AnnotationOf({mesh, spec}, static_cast<int>(rank), {&set.meshes, &set.grids}, caller)
      .status();
}

absl::Status FillShards(at::Tensor& host, const std::vector<ShardData>& shards,
                        const char* caller) {
  at::Tensor covered = at::zeros(host.sizes(), at::kBool);
  for (const ShardData& shard : shards) {
    if (shard.index.size() != static_cast<size_t>(host.dim())) {
      return absl::InvalidArgumentError(absl::StrCat(caller, ": shard ", BoxToString(shard.index),
                                                     " is not of a tensor of rank ", host.dim()));
    }
    at::Tensor part = host, mask = covered;
    for (int64_t d = 0; d < host.dim(); ++d) {
      const Interval& i = shard.index[d];
      if (i.begin < 0 || i.end > host.size(d)) {
        return absl::InvalidArgumentError(absl::StrCat(caller, ": shard ", BoxToString(shard.index),
                                                       " reaches outside the tensor"));
      }
      part = part.slice(d, i.begin, std::max(i.begin, i.end));
      mask = mask.slice(d, i.begin, std::max(i.begin, i.end));
    }
    if (part.sizes() != shard.data.sizes()) {
      return absl::InvalidArgumentError(
          absl::StrCat(caller, ": shard ", BoxToString(shard.index), " has data of sizes ",
                       DimsToString(Dims(shard.data.sizes().begin(), shard.data.sizes().end())),
                       ", not ", DimsToString(Dims(part.sizes().begin(), part.sizes().end()))));
    }
    part.copy_(shard.data.cpu());
    mask.fill_(true);
  }
  if (!covered.all().item<bool>()) {
    const at::Tensor missing = covered.logical_not();
    const at::Tensor first = missing.nonzero()[0].contiguous();
    return absl::InvalidArgumentError(absl::StrCat(
        caller, ": the shards leave ", missing.sum().item<int64_t>(), " of ", host.numel(),
        " elements without data, the first of them at [",
        absl::StrJoin(absl::MakeSpan(first.const_data_ptr<int64_t>(), first.numel()), ", "), "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Session::MarkSharding(const at::Tensor& tensor, const Mesh& mesh,
                                   const PartitionSpec& spec) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CheckOurs("mark_sharding", tensor));
  SPMD_RETURN_IF_ERROR(NoteMesh(*lock, mesh));
  // Raises what is wrong with the spec in the terms of the tensor that was given.
  SPMD_RETURN_IF_ERROR(CheckSpec(*lock, "mark_sharding", mesh, spec, tensor.dim()));
  lock->used = true;
  Buffer* buffer = BufferOf(tensor);
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  const Dims base(buffer->form.sizes.begin(), buffer->form.sizes.end());
  std::optional<PartitionSpec> base_spec = spec;
  if (recipe != nullptr) {
    const auto dims = BaseDims(recipe, base);
    base_spec = dims.has_value() ? BaseSpec(spec, *dims, base.size()) : std::nullopt;
  }
  const bool whole =
      tensor.is_contiguous() &&
      static_cast<size_t>(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes();
  if (!base_spec.has_value() && whole && buffer->mark == nullptr) {
    // A reshape of all that is stored: the storage takes its form, other views are made from it.
    RebaseBytes(*lock, buffer, FormOf(tensor));
    base_spec = spec;
  }
  if (!base_spec.has_value()) {
    if (!buffer->pending()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mark_sharding: the tensor of sizes ",
                       DimsToString(Dims(tensor.sizes().begin(), tensor.sizes().end())),
                       " is a view of part of stored data of sizes ", DimsToString(base),
                       "; mark the base, or a copy: tensor.clone()"));
    }
    lock->tape->Annotate(Read(*lock, tensor), std::make_shared<const Mark>(
                                                  Mark{mesh, spec}));  // a constraint on that value
    return absl::OkStatus();
  }
  const auto mark = std::make_shared<const Mark>(Mark{mesh, *base_spec});
  if (buffer->mark != nullptr) {
    if (SameMark(buffer->mark, mark)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "mark_sharding: the tensor is marked ", SpecToString(buffer->mark->spec), " on mesh ",
        buffer->mark->mesh.AxesToString(), " already; got ", SpecToString(spec), " on mesh ",
        mesh.AxesToString(), ". Use reshard for a copy, or clear_sharding first"));
  }
  buffer->mark = mark;
  buffer->settled.reset();
  Tape& tape = *lock->tape;
  if (buffer->holds_nothing()) return absl::OkStatus();
  const TapeId id = buffer->value()->id;
  if (tape.IsHeldBy(*buffer, id)) {
    // A value that something else holds, too, gets a name of its own.
    if (tape.origin(id).record < 0 || tape.CountHolders(id) > 1) {
      const TapeId copy = EmitNamed(*lock, "aten::clone", {id}, {}, TypeOf(*lock, id));
      BindBuffer(*lock, buffer, copy);
    } else {
      tape.Annotate(id, mark);
    }
  }
  return absl::OkStatus();
}

absl::Status Session::ClearSharding(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CheckOurs("clear_sharding", tensor));
  Buffer* buffer = BufferOf(tensor);
  buffer->mark.reset();
  buffer->settled.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ShardingInfo>> Session::ShardingOf(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CheckOurs("sharding_of", tensor));
  Buffer* buffer = BufferOf(tensor);
  const Dims base(buffer->form.sizes.begin(), buffer->form.sizes.end());
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  const auto dims = BaseDims(recipe, base);
  const auto to_view = [&](const PartitionSpec& spec) {
    if (!dims.has_value()) return PartitionSpec(tensor.dim());
    return ViewSpec(spec, *dims);
  };
  if (buffer->mark != nullptr) {
    // How a view that reorders elements lies is not said by a spec: then nothing is claimed.
    return ShardingInfo{
        buffer->mark->mesh, to_view(buffer->mark->spec), dims.has_value(), false, {}};
  }
  if (!lock->meshes.latest().has_value()) return std::nullopt;
  const Mesh& latest = *lock->meshes.latest();
  if (buffer->holds_nothing()) {
    return ShardingInfo{latest, PartitionSpec(tensor.dim()), false, true, {}};
  }
  const ValuePtr& value = buffer->value();
  const Layout* layout = nullptr;
  std::optional<Layout> chosen;
  if (value->pending) {
    SPMD_ASSIGN_OR_RETURN(chosen, ProvisionalLayout(*lock, value->id));
    layout = &*chosen;
  } else if (value->layout != nullptr) {
    layout = &*value->layout;
  } else {
    return ShardingInfo{latest, PartitionSpec(tensor.dim()), false, true, {}};
  }
  // First the mesh that gave the layout's axes their names.
  std::vector<Mesh> candidates = lock->meshes.MeshesOf(layout->grid());
  candidates.push_back(latest);
  for (const Mesh& mesh : candidates) {
    if (!layout->grid()->Refines(mesh)) continue;
    ShardingInfo info{mesh,
                      to_view(SpecOf(layout->sharding().Closed(), *layout->grid(), mesh)),
                      false,
                      value->pending,
                      {}};
    if (layout->sharding().IsUnreduced()) {
      const std::string names = layout->grid()->AxesToString(layout->sharding().unreduced);
      info.unreduced = absl::StrSplit(names, ',');
    }
    return info;
  }
  return ShardingInfo{latest, PartitionSpec(tensor.dim()), false, value->pending, {}};
}

absl::StatusOr<at::Tensor> Session::Reshard(const at::Tensor& tensor, const Mesh& mesh,
                                            const PartitionSpec& spec) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CheckOurs("reshard", tensor));
  SPMD_RETURN_IF_ERROR(NoteMesh(*lock, mesh));
  SPMD_RETURN_IF_ERROR(CheckSpec(*lock, "reshard", mesh, spec, tensor.dim()));
  lock->used = true;
  const TensorMeta meta = TensorMeta::Contiguous(tensor.scalar_type(), tensor.sizes());
  at::Tensor out = NewTensor(meta, nullptr);
  BufferOf(out)->mark = std::make_shared<const Mark>(Mark{mesh, spec});
  const TapeId copy = EmitNamed(*lock, "aten::clone", {Read(*lock, tensor)}, {}, TypeOf(meta));
  BindBuffer(*lock, BufferOf(out), copy);
  return out;
}

absl::StatusOr<std::vector<ShardData>> Session::LocalShards(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CheckOurs("local_shards", tensor));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(*lock));
  Buffer* buffer = BufferOf(tensor);
  if (buffer->pending()) {
    SPMD_RETURN_IF_ERROR(Cut(*lock, "local_shards"));
  }
  const Dims base(buffer->form.sizes.begin(), buffer->form.sizes.end());
  const ValuePtr value = buffer->value();
  if (value != nullptr) SPMD_RETURN_IF_ERROR(Resolve(*lock, *value));
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  const auto dims = BaseDims(recipe, base);
  // Where the tensor lies, as a layout of the tensor itself.
  const Dims own(tensor.sizes().begin(), tensor.sizes().end());
  std::vector<Mesh> latest;
  if (lock->meshes.latest().has_value()) latest.push_back(*lock->meshes.latest());
  Layout layout(lock->meshes.SetOf(latest).grids.grids[0],
                Sharding::Replicated(static_cast<int>(own.size())), own);
  std::optional<Layout> stored;
  if (value != nullptr && value->layout != nullptr) {
    stored = *value->layout;
  } else if (buffer->mark != nullptr) {
    SPMD_ASSIGN_OR_RETURN(stored, LayoutOfMark(*lock, *buffer->mark, base));
  }
  if (stored.has_value() && dims.has_value()) {
    Sharding sharding = Sharding::Replicated(static_cast<int>(own.size()));
    for (size_t d = 0; d < dims->size(); ++d) {
      if ((*dims)[d] >= 0) sharding.dims[d] = stored->sharding().dims[(*dims)[d]];
    }
    layout = Layout(stored->grid(), sharding, own);
  }
  const at::Tensor host = ReadHost(*lock, tensor, "local_shards");
  std::vector<ShardData> shards;
  std::vector<int64_t> replicas(layout.num_tiles(), 0);
  for (int64_t p = 0; p < layout.grid()->num_devices(); ++p) {
    ShardData shard;
    shard.index = layout.BoxAt(p);
    shard.device = layout.grid()->device_ids()[p];
    shard.replica_id = replicas[layout.TileAt(p)]++;
    at::Tensor part = host;
    for (int64_t d = 0; d < host.dim(); ++d) {
      part =
          part.slice(d, shard.index[d].begin, std::max(shard.index[d].begin, shard.index[d].end));
    }
    shard.data = part.clone(at::MemoryFormat::Contiguous);
    shards.push_back(std::move(shard));
  }
  return shards;
}

absl::StatusOr<at::Tensor> Session::FromLocalShards(const std::vector<ShardData>& shards,
                                                    const Mesh& mesh, const PartitionSpec& spec,
                                                    const std::vector<int64_t>& dims) {
  SessionLock lock;
  if (shards.empty()) return absl::InvalidArgumentError("from_local_shards: no shards were given");
  SPMD_RETURN_IF_ERROR(NoteMesh(*lock, mesh));
  SPMD_RETURN_IF_ERROR(CheckSpec(*lock, "from_local_shards", mesh, spec, dims.size()));
  lock->used = true;
  at::Tensor host = at::zeros(dims, shards[0].data.options().device(at::kCPU));
  SPMD_RETURN_IF_ERROR(FillShards(host, shards, "from_local_shards"));
  at::Tensor out = NewTensor(TensorMeta::Of(host), HostValue(host, /*steal=*/true));
  BufferOf(out)->mark = std::make_shared<const Mark>(Mark{mesh, spec});
  return out;
}

absl::Status Session::LoadLocalShards(const at::Tensor& tensor,
                                      const std::vector<ShardData>& shards) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(CheckOurs("load_local_shards_", tensor));
  at::Tensor host = at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
  SPMD_RETURN_IF_ERROR(FillShards(host, shards, "load_local_shards_"));
  Write(*lock, tensor, lock->tape->Use(HostValue(host, /*steal=*/true), nullptr));
  return absl::OkStatus();
}

}  // namespace spmd::trace
