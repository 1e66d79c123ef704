// SPDX-License-Identifier: Apache-2.0
// The shards of tensors, read and given. With several processes each reads and gives those of its
// own devices, and no process holds a whole tensor.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/runtime/make_tiles.h"
#include "csrc/runtime/peers.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/agree.h"
#include "csrc/trace/run/cut.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/marking.h"
#include "csrc/trace/run/read_host.h"
#include "csrc/trace/run/resolve.h"
#include "csrc/trace/run/tensor_layout.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Shards = std::vector<ShardData>;

absl::Status CheckShards(const Shards& shards, const Dims& dims, const char* caller) {
  for (const ShardData& shard : shards) {
    if (shard.index.size() != dims.size()) {
      return absl::InvalidArgumentError(absl::StrCat(caller, ": shard ", BoxToString(shard.index),
                                                     " is not of a tensor of rank ", dims.size()));
    }
    for (size_t d = 0; d < dims.size(); ++d) {
      if (shard.index[d].begin < 0 || shard.index[d].end > dims[d]) {
        return absl::InvalidArgumentError(absl::StrCat(caller, ": shard ", BoxToString(shard.index),
                                                       " reaches outside the tensor"));
      }
    }
    const Dims given(shard.data.sizes().begin(), shard.data.sizes().end());
    if (given != BoxDims(shard.index)) {
      return absl::InvalidArgumentError(absl::StrCat(caller, ": shard ", BoxToString(shard.index),
                                                     " has data of sizes ", DimsToString(given),
                                                     ", not ", DimsToString(BoxDims(shard.index))));
    }
  }
  return absl::OkStatus();
}

// The part `box` of a tensor that is the part `within`.
at::Tensor PartOf(at::Tensor tensor, const Box& box, const Box& within) {
  for (size_t d = 0; d < box.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), box[d].begin - within[d].begin, box[d].size());
  }
  return tensor;
}

// Fills `tile`, the part of a tensor in `box`, from the shards. Requires: CheckShards.
// Errors: InvalidArgument if elements are missing.
absl::Status FillTile(const Box& box, const at::Tensor& tile, const Shards& shards,
                      const char* caller) {
  at::Tensor covered;
  for (const ShardData& shard : shards) {
    const Box part = Intersect(box, shard.index);
    if (IsEmpty(part)) continue;
    PartOf(tile, part, box).copy_(PartOf(shard.data.cpu(), part, shard.index));
    if (part == box) return absl::OkStatus();
    if (!covered.defined()) covered = at::zeros(tile.sizes(), at::kBool);
    PartOf(covered, part, box).fill_(true);
  }
  if (IsEmpty(box)) return absl::OkStatus();
  if (!covered.defined()) covered = at::zeros(tile.sizes(), at::kBool);
  const at::Tensor missing = covered.logical_not();
  const int64_t count = missing.sum().item<int64_t>();
  if (count == 0) return absl::OkStatus();
  const at::Tensor found = missing.nonzero()[0].contiguous();
  std::vector<int64_t> first(found.const_data_ptr<int64_t>(),
                             found.const_data_ptr<int64_t>() + found.numel());
  for (size_t d = 0; d < first.size(); ++d) first[d] += box[d].begin;
  return absl::InvalidArgumentError(absl::StrCat(
      caller, ": the shards leave ", count, " of ", tile.numel(),
      " elements without data, the first of them at [", absl::StrJoin(first, ", "), "]"));
}

// The error of the first process that has one, in all processes. Collective.
absl::Status FirstError(SessionState& state, const absl::Status& mine, const std::string& doing) {
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        SayInRound(state, runtime::StatusToText(mine), doing));
  for (size_t r = 0; r < all.size(); ++r) {
    const absl::Status status = runtime::StatusFromText(all[r]);
    if (status.ok()) continue;
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), " (in ", runtime::ProcessName(static_cast<int>(r)), ")"));
  }
  return absl::OkStatus();
}

// A value with this layout, made of the shards that each process gives for its own devices.
// Collective.
absl::StatusOr<ValuePtr> ValueOfShards(SessionState& state, const TensorType& type,
                                       const Layout& layout, const Shards& shards,
                                       const char* caller) {
  SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  absl::Status status = CheckShards(shards, type.dims, caller);
  runtime::TiledTensorPtr tiles;
  try {
    if (status.ok()) {
      tiles = runtime::MakeTiles(layout, type.dtype, *backend, /*whole=*/false,
                                 [&](const Box& box, const at::Tensor& tile) {
                                   status.Update(FillTile(box, tile, shards, caller));
                                 });
    }
  } catch (const std::exception& e) {
    status.Update(absl::ResourceExhaustedError(absl::StrCat(caller, ": ", e.what())));
  }
  SPMD_RETURN_IF_ERROR(
      FirstError(state, status,
                 absl::StrCat("gives its parts of ", type.ToString(), " ", layout.ToString(),
                              " on ", layout.grid()->ToString(), " (", caller, ")")));
  auto value = c10::make_intrusive<Value>(type);
  value->tiles = std::move(tiles);
  value->layout = std::make_shared<const Layout>(layout);
  return value;
}

// Another tensor of the same memory. Python keeps a tensor that it has seen for as long as somebody
// else does, so that a tile itself would never again be held by its value alone.
at::Tensor Alias(const at::Tensor& tile) {
  return at::Tensor(tile.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false));
}

// The value's own tiles, if they can be overwritten; else nullopt.
std::optional<PartsToFill> OwnParts(ValuePtr held, const TensorType& type) {
  if (held == nullptr || held->tiles == nullptr || held->layout == nullptr) return std::nullopt;
  // The Buffer and this function.
  const bool alone = held.use_count() == 2 && held->tiles.use_count() == 1;
  if (!alone || held->type.dims != type.dims || runtime::IsPlanned(*held->tiles)) {
    return std::nullopt;
  }
  std::optional<std::vector<runtime::HeldPart>> parts = runtime::PartsToOverwrite(*held->tiles);
  if (!parts.has_value()) return std::nullopt;
  for (runtime::HeldPart& part : *parts) part.tile = Alias(part.tile);
  auto value = c10::make_intrusive<Value>(type);
  value->tiles = held->tiles;
  value->layout = held->layout;
  return PartsToFill{std::move(value), *std::move(parts)};
}

Layout Summed(const Layout& layout) {
  return Layout(layout.grid(), layout.sharding().Reduced(), layout.dims());
}

// The element type of the shards. Collective, since a process may have none to give.
// Errors: InvalidArgument if there are no shards at all, or if the types differ.
absl::StatusOr<c10::ScalarType> TypeOfShards(SessionState& state, const Shards& shards) {
  const std::string mine =
      shards.empty() ? "" : absl::StrCat(static_cast<int>(shards[0].data.scalar_type()));
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        SayInRound(state, mine, "gives its parts of a tensor (from_local_shards)"));
  const std::string* found = nullptr;
  for (const std::string& theirs : all) {
    if (theirs.empty()) continue;
    if (found != nullptr && theirs != *found) {
      return absl::InvalidArgumentError(
          "from_local_shards: the processes give parts of different dtypes; all parts of a tensor "
          "have one");
    }
    found = &theirs;
  }
  int number = 0;
  if (found == nullptr || !absl::SimpleAtoi(*found, &number)) {
    return absl::InvalidArgumentError("from_local_shards: no shards were given");
  }
  return static_cast<c10::ScalarType>(number);
}

}  // namespace

absl::StatusOr<std::vector<ShardData>> Session::LocalShards(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_RETURN_IF_ERROR(CheckOurs("local_shards", tensor));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(*lock));
  Buffer* buffer = BufferOf(tensor);
  SPMD_RETURN_IF_ERROR(CutFor(*lock, buffer, "local_shards"));
  if (const ValuePtr value = buffer->value()) SPMD_RETURN_IF_ERROR(Resolve(*lock, *value));
  SPMD_ASSIGN_OR_RETURN(const std::optional<TensorLayout> found, LayoutOfTensor(*lock, tensor));
  const Dims own(tensor.sizes().begin(), tensor.sizes().end());
  const Layout layout = found.has_value() ? found->layout : LayoutOfNew(*lock, own);
  // Whether every part can be had without the others is the same in all processes.
  const bool in_parts = lock->processes.several() && RecipeOf(buffer, tensor) == nullptr &&
                        !layout.sharding().IsUnreduced();
  const at::Tensor host = in_parts ? at::Tensor() : ReadHost(*lock, tensor, "local_shards");
  std::vector<ShardData> shards;
  std::vector<int64_t> replicas(layout.num_tiles(), 0);
  for (int64_t p = 0; p < layout.grid()->num_devices(); ++p) {
    ShardData shard;
    shard.index = layout.BoxAt(p);
    shard.device = layout.grid()->device_ids()[p];
    shard.replica_id = replicas[layout.TileAt(p)]++;
    if (!backend->homes().IsHere(backend->homes().Of(*layout.grid(), p))) continue;
    if (in_parts && IsEmpty(shard.index)) {
      const Dims dims = BoxDims(shard.index);
      shard.data = at::empty(at::IntArrayRef(dims.data(), dims.size()),
                             at::TensorOptions(tensor.scalar_type()));
    } else if (in_parts) {
      shard.data = ReadHostPart(*lock, tensor, shard.index, "local_shards");
    } else {
      at::Tensor part = host;
      for (int64_t d = 0; d < host.dim(); ++d) {
        part =
            part.slice(d, shard.index[d].begin, std::max(shard.index[d].begin, shard.index[d].end));
      }
      shard.data = part.clone(at::MemoryFormat::Contiguous);
    }
    shards.push_back(std::move(shard));
  }
  return shards;
}

absl::StatusOr<at::Tensor> Session::FromLocalShards(const std::vector<ShardData>& shards,
                                                    const Mesh& mesh, const PartitionSpec& spec,
                                                    const std::vector<int64_t>& sizes) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(NoteMesh(*lock, mesh));
  SPMD_RETURN_IF_ERROR(CheckSpec(*lock, "from_local_shards", mesh, spec, sizes.size()));
  session_flags.used = true;
  const Dims dims(sizes.begin(), sizes.end());
  SPMD_ASSIGN_OR_RETURN(const c10::ScalarType type, TypeOfShards(*lock, shards));
  const auto mark = std::make_shared<const Mark>(Mark{mesh, spec});
  if (lock->processes.several() && !HasBlocks(spec)) {
    SPMD_ASSIGN_OR_RETURN(const Layout layout, LayoutOfMark(*lock, *mark, dims));
    const TensorMeta meta = TensorMeta::Contiguous(type, sizes);
    SPMD_ASSIGN_OR_RETURN(ValuePtr value,
                          ValueOfShards(*lock, TypeOf(meta), layout, shards, "from_local_shards"));
    const at::Tensor out = NewTensor(meta, std::move(value));
    BufferOf(out)->mark = mark;
    return out;
  }
  SPMD_RETURN_IF_ERROR(CheckShards(shards, dims, "from_local_shards"));
  const at::Tensor host = at::zeros(sizes, at::TensorOptions(type));
  SPMD_RETURN_IF_ERROR(FillTile(WholeBox(dims), host, shards, "from_local_shards"));
  at::Tensor out = NewTensor(TensorMeta::Of(host), HostValue(host, /*steal=*/true));
  if (HasBlocks(spec)) {
    SPMD_RETURN_IF_ERROR(MarkSharding(out, mesh, spec));
  } else {
    BufferOf(out)->mark = mark;
  }
  return out;
}

absl::Status Session::LoadLocalShards(const at::Tensor& tensor,
                                      const std::vector<ShardData>& shards) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_RETURN_IF_ERROR(CheckOurs("load_local_shards_", tensor));
  const Dims dims(tensor.sizes().begin(), tensor.sizes().end());
  ValuePtr value;
  if (lock->processes.several()) {
    Buffer* const buffer = BufferOf(tensor);
    // What would be chosen now could depend on what other processes have dropped.
    if (buffer->mark == nullptr) {
      SPMD_RETURN_IF_ERROR(CutFor(*lock, buffer, "load_local_shards_"));
    }
    SPMD_ASSIGN_OR_RETURN(const std::optional<TensorLayout> found, LayoutOfTensor(*lock, tensor));
    const Layout layout = found.has_value() ? Summed(found->layout) : LayoutOfNew(*lock, dims);
    SPMD_ASSIGN_OR_RETURN(
        value, ValueOfShards(*lock, TypeOf(tensor), layout, shards, "load_local_shards_"));
  } else {
    SPMD_RETURN_IF_ERROR(CheckShards(shards, dims, "load_local_shards_"));
    const at::Tensor host = at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
    SPMD_RETURN_IF_ERROR(FillTile(WholeBox(dims), host, shards, "load_local_shards_"));
    value = HostValue(host, /*steal=*/true);
  }
  Write(*lock, tensor, lock->tape->Use(value, nullptr));
  return absl::OkStatus();
}

absl::StatusOr<PartsToFill> Session::MakePartsToFill(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  SPMD_RETURN_IF_ERROR(CheckOurs("load", tensor));
  Buffer* const buffer = BufferOf(tensor);
  SPMD_RETURN_IF_ERROR(CutFor(*lock, buffer, "load"));
  SPMD_CHECK(RecipeOf(buffer, tensor) == nullptr, "the parts of a view are to be filled");
  if (!buffer->holds_nothing()) SPMD_RETURN_IF_ERROR(Resolve(*lock, *buffer->value()));
  const TensorType type = TypeOf(tensor);
  if (auto own = OwnParts(buffer->value(), type)) return *std::move(own);
  if (const auto& queue = lock->in_flight.queue; queue != nullptr) {
    // The thread that has run a program lets go of its results a moment after it says so.
    constexpr std::chrono::milliseconds kMoment(50);
    {
      const GilReleased no_gil(*lock);
      queue->WaitForAll(kMoment);
    }
    if (auto own = OwnParts(buffer->value(), type)) return *std::move(own);
  }
  SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<runtime::Backend> backend, TheBackend(*lock));
  SPMD_ASSIGN_OR_RETURN(const std::optional<TensorLayout> found, LayoutOfTensor(*lock, tensor));
  const Layout layout = found.has_value() ? Summed(found->layout) : LayoutOfNew(*lock, type.dims);
  PartsToFill made{c10::make_intrusive<Value>(type), {}};
  try {
    made.value->tiles =
        runtime::MakeTiles(layout, type.dtype, *backend, LoadOptions(*lock).coalesce,
                           [&](const Box& box, const at::Tensor& tile) {
                             if (!IsEmpty(box)) made.parts.push_back({box, Alias(tile)});
                           });
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("load: ", e.what()));
  }
  made.value->layout = std::make_shared<const Layout>(layout);
  return made;
}

absl::Status Session::PutParts(const at::Tensor& tensor, PartsToFill parts) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(trace::RunWaitingStep(*lock));
  Buffer* const buffer = BufferOf(tensor);
  if (buffer->pending()) {  // written meanwhile
    Write(*lock, tensor, lock->tape->Use(std::move(parts.value), nullptr));
  } else {
    // Not by the tape, which would copy a value that has a mark.
    buffer->Bind(std::move(parts.value));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeviceBox>> BoxesOfMark(const Mesh& mesh, const PartitionSpec& spec,
                                                   const std::vector<int64_t>& sizes) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(NoteMesh(*lock, mesh));
  SPMD_RETURN_IF_ERROR(CheckSpec(*lock, "from_process_local", mesh, spec, sizes.size()));
  SPMD_ASSIGN_OR_RETURN(const Layout layout,
                        LayoutOfMark(*lock, Mark{mesh, spec}, Dims(sizes.begin(), sizes.end())));
  return BoxesOfLayout(layout);
}

}  // namespace spmd::trace
