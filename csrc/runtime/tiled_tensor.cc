// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/tiled_tensor.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/program/terms.h"
#include "csrc/runtime/accumulate.h"
#include "csrc/runtime/aten_backend.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/executor.h"
#include "csrc/runtime/make_tiles.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/runtime/places.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

struct DTypePair {
  DType ours;
  c10::ScalarType torch;
};
constexpr DTypePair kDTypes[] = {
    {DType::kBool, c10::kBool},
    {DType::kU8, c10::kByte},
    {DType::kI8, c10::kChar},
    {DType::kU16, c10::kUInt16},
    {DType::kI16, c10::kShort},
    {DType::kU32, c10::kUInt32},
    {DType::kI32, c10::kInt},
    {DType::kU64, c10::kUInt64},
    {DType::kI64, c10::kLong},
    {DType::kF8E4M3FN, c10::kFloat8_e4m3fn},
    {DType::kF8E5M2, c10::kFloat8_e5m2},
    {DType::kF16, c10::kHalf},
    {DType::kBF16, c10::kBFloat16},
    {DType::kF32, c10::kFloat},
    {DType::kF64, c10::kDouble},
    {DType::kC32, c10::kComplexHalf},
    {DType::kC64, c10::kComplexFloat},
    {DType::kC128, c10::kComplexDouble},
};

class HostBackend : public AtenBackend {
 public:
  const std::string& name() const override { return name_; }
  int64_t num_devices() const override { return 1; }
  bool elastic() const override { return true; }
  const machine::Machine& machine() const override { return machine_; }
  Place place(int64_t) const override { return {c10::Device(c10::kCPU)}; }
  bool has_one_place() const override { return true; }
  std::string Describe() const override { return name_; }

 private:
  std::string name_ = "host";
  machine::Machine machine_;
};

// What the tensor with this index holds of the value.
Box BoxOfIndex(const Placement& placement, int64_t index) {
  Box box;
  const Dims& dims = placement.DimsOf(index);
  for (int d = 0; d < placement.rank(); ++d) {
    const int64_t begin = dims[d] == 0 ? 0 : placement.TileBegin(placement.TileOf(index), d);
    box.push_back({begin, begin + dims[d]});
  }
  return box;
}

}  // namespace

c10::ScalarType ToScalarType(DType dtype) {
  for (const DTypePair& pair : kDTypes) {
    if (pair.ours == dtype) return pair.torch;
  }
  SPMD_CHECK(false, "element type ", static_cast<int>(dtype), " has no torch type");
  return c10::ScalarType::Undefined;
}

DType FromScalarType(c10::ScalarType type) {
  for (const DTypePair& pair : kDTypes) {
    if (pair.torch == type) return pair.ours;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_spmd has no element type for ", type);
}

TiledTensorPtr Upload(const at::Tensor& host, const Layout& layout, Backend& backend, bool whole) {
  SPMD_CHECK(host.sizes() == at::IntArrayRef(layout.dims().data(), layout.dims().size()),
             "Upload of sizes ", DimsToString(Dims(host.sizes().begin(), host.sizes().end())),
             " to layout ", layout.ToString());
  const DispatchGuard guard;
  const at::Tensor source = host.is_cpu() ? host.resolve_conj().resolve_neg() : host;
  return MakeTiles(layout, FromScalarType(host.scalar_type()), backend, whole,
                   [&](const Box& box, const at::Tensor& tile) {
                     at::Tensor part = source;
                     for (size_t d = 0; d < box.size(); ++d) {
                       part = part.narrow(static_cast<int64_t>(d), box[d].begin, box[d].size());
                     }
                     backend.Copy(part, tile);
                   });
}

TiledTensorPtr MakeTiles(const Layout& layout, DType dtype, Backend& backend, bool whole,
                         absl::FunctionRef<void(const Box& box, const at::Tensor& tile)> fill) {
  const DispatchGuard guard;
  const TileMemory::Scope kept;
  auto result = std::make_shared<TiledTensor>(
      TiledTensor{layout, dtype, {}, NeedsPositions(layout, backend)});
  result->whole = whole && !result->per_position;
  result->devices_per_process = backend.homes().devices_per_process;
  const Placement to = PlacementOf(*result);
  // Along unreduced axes, coordinate 0 holds the value itself and the others the identity.
  const Sharding& sharding = layout.sharding();
  const DType held = program::HeldType(result->dtype, sharding);
  // Replicas at one place share a tensor.
  struct Made {
    at::Tensor tensor;
    Place place = {c10::Device(c10::kCPU)};
  };
  std::vector<Made> made(to.layout().num_tiles());
  for (int64_t i = 0; i < to.count(); ++i) {
    if (!backend.homes().IsHere(to.HomeOf(i))) {
      result->tiles.emplace_back();
      continue;
    }
    const Place place = backend.place(to.grid().device_ids()[to.PositionOf(i)]);
    auto& [tile, tile_place] = made[to.TileOf(i)];
    if (!tile.defined() || tile_place != place) {
      tile_place = place;
      const Dims& dims = to.DimsOf(i);
      if (to.grid().Coordinate(to.PositionOf(i), sharding.unreduced) != 0) {
        tile = IdentityTile(backend, place, sharding.reduce_kind, held, dims);
        result->tiles.push_back(tile);
        continue;
      }
      tile = backend.Allocate(place, at::IntArrayRef(dims.data(), dims.size()), ToScalarType(held));
      if (!backend.planning()) fill(BoxOfIndex(to, i), tile);
    }
    result->tiles.push_back(tile);
  }
  return result;
}

std::optional<at::Tensor> PartHere(const TiledTensor& value, const Box& box) {
  if (value.layout.sharding().IsUnreduced()) return std::nullopt;
  const DispatchGuard guard;
  const Placement from = PlacementOf(value);
  for (int64_t i = 0; i < from.count(); ++i) {
    if (!value.tiles[i].defined()) continue;
    const Box held = BoxOfIndex(from, i);
    if (!Contains(held, box)) continue;
    at::Tensor part = value.tiles[i].resolve_conj().resolve_neg();
    for (size_t d = 0; d < box.size(); ++d) {
      part = part.narrow(static_cast<int64_t>(d), box[d].begin - held[d].begin, box[d].size());
    }
    return part;
  }
  return std::nullopt;
}

std::optional<std::vector<HeldPart>> PartsToOverwrite(const TiledTensor& value) {
  if (value.layout.sharding().IsUnreduced()) return std::nullopt;
  const Placement at = PlacementOf(value);
  absl::flat_hash_map<const c10::TensorImpl*, size_t> holders, listed;
  for (const at::Tensor& tile : value.tiles) {
    if (tile.defined()) ++holders[tile.unsafeGetTensorImpl()];
  }
  std::vector<HeldPart> parts;
  for (int64_t i = 0; i < at.count(); ++i) {
    const at::Tensor& tile = value.tiles[i];
    Box box = BoxOfIndex(at, i);
    if (!tile.defined() || IsEmpty(box)) continue;
    const c10::TensorImpl* const impl = tile.unsafeGetTensorImpl();
    if (const auto found = listed.find(impl); found != listed.end()) {
      if (parts[found->second].box != box) return std::nullopt;
      continue;  // a replica
    }
    if (tile.use_count() != holders[impl] || !tile.has_storage() ||
        tile.storage().use_count() != 1 || !tile.is_non_overlapping_and_dense() || tile.is_conj() ||
        tile.is_neg()) {
      return std::nullopt;
    }
    listed[impl] = parts.size();
    parts.push_back({std::move(box), tile});
  }
  return parts;
}

bool IsPlanned(const TiledTensor& value) {
  return std::any_of(value.tiles.begin(), value.tiles.end(),
                     [](const at::Tensor& tile) { return tile.defined() && tile.is_meta(); });
}

absl::StatusOr<at::Tensor> Download(const TiledTensor& value, Peers* peers) {
  if (IsPlanned(value)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the value ", value.layout.ToString(),
        " was planned, not computed: a planning backend knows shapes only; drop ':plan' from the "
        "backend's name to compute values"));
  }
  if (peers == nullptr && value.devices_per_process > 0 &&
      !std::all_of(value.tiles.begin(), value.tiles.end(),
                   [](const at::Tensor& tile) { return tile.defined(); })) {
    return absl::FailedPreconditionError(
        absl::StrCat("the value ", value.layout.ToString(),
                     " is held by several processes, and this cannot "
                     "read what the others hold"));
  }
  const DispatchGuard guard;
  try {
    const Placement from = PlacementOf(value);
    // The target is a value of one tile, so that joining the tiles is a move.
    const Placement to(WholeLayout(value.layout.dims()), /*per_position=*/false);
    HostBackend host;
    if (peers != nullptr) host.Join(peers, value.devices_per_process, /*exact_sums=*/true);
    // Everything is copied to a new tensor on the host, even if the plan would share or view.
    MovePlan plan = MovePlan::Make(from, to, host);
    TileMove& move = plan.tiles[0];
    if (move.action == TileMove::Action::kShare || move.action == TileMove::Action::kView) {
      move.action = TileMove::Action::kCopy;
    }
    move.may_accumulate = false;
    std::vector<at::Tensor> tiles = value.tiles;
    for (at::Tensor& tile : tiles) {
      if (tile.defined()) tile = tile.resolve_conj().resolve_neg();
    }
    const DType held = program::HeldType(value.dtype, from.sharding());
    SPMD_ASSIGN_OR_RETURN(
        std::vector<at::Tensor> whole,
        RunMovePlan(plan, std::move(tiles), ToScalarType(held), value.dtype, peers));
    return std::move(whole[0]);
  } catch (const std::exception& e) {
    return StatusFromException(e, absl::StrCat("reading ", value.layout.ToString()));
  }
}

bool IsHeldByAll(const TiledTensor& value, const Peers* peers) {
  const Layout& layout = value.layout;
  const Grid& grid = *layout.grid();
  const int64_t dealt = value.devices_per_process;
  if (peers == nullptr || value.whole || dealt == 0 || grid.num_devices() == 1) return true;
  absl::flat_hash_set<std::pair<int, int64_t>> held;
  absl::flat_hash_set<int> processes;
  for (int64_t p = 0; p < grid.num_devices(); ++p) {
    const int home = Homes::Of(grid, p, dealt);
    processes.insert(home);
    held.insert({home, layout.TileAt(p)});
  }
  return std::ssize(processes) == peers->size() &&
         std::ssize(held) == peers->size() * layout.num_tiles();
}

}  // namespace spmd::runtime
