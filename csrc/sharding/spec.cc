// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/sharding/axis_part.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

std::string AxisText(const SpecAxis& axis) {
  if (const auto* name = std::get_if<std::string>(&axis)) return absl::StrCat("'", *name, "'");
  return absl::StrCat(std::get<int64_t>(axis));
}

std::string AxesText(const SpecEntry& entry) {
  if (entry.axes.empty()) return entry.unconstrained ? "UNCONSTRAINED" : "None";
  std::vector<std::string> parts;
  for (const SpecAxis& axis : entry.axes) parts.push_back(AxisText(axis));
  if (entry.unconstrained) parts.push_back("UNCONSTRAINED");
  if (parts.size() == 1) return parts[0];
  return absl::StrCat("(", absl::StrJoin(parts, ", "), ")");
}

std::string EntryText(const SpecEntry& entry) {
  if (entry.blocks == 1) return AxesText(entry);
  return absl::StrCat("blocks(", entry.blocks, ", ", AxesText(entry), ")");
}

// Resolves one spec and records where each axis is used, to report repeated axes.
class SpecResolver {
 public:
  SpecResolver(absl::string_view caller, const PartitionSpec& spec, const Mesh& mesh,
               const Grid& grid)
      : spec_(spec),
        mesh_(mesh),
        grid_(grid),
        start_(absl::StrCat(caller, caller.empty() ? "" : ": ", "spec ", SpecToString(spec))),
        used_in_dim_(mesh.rank(), -1) {}

  absl::StatusOr<Sharding> Resolve(int rank) {
    SPMD_RETURN_IF_ERROR(CheckRank(rank));
    Sharding sharding = Sharding::Replicated(rank);
    for (int d = 0; d < rank; ++d) {
      sharding.dims[d].open = spec_[d].unconstrained;
      for (const SpecAxis& axis : spec_[d].axes) {
        SPMD_ASSIGN_OR_RETURN(const AxisList axes, ResolveAxis(axis, d));
        sharding.dims[d].axes.insert(sharding.dims[d].axes.end(), axes.begin(), axes.end());
      }
    }
    return sharding;
  }

 private:
  std::string MeshText() const { return absl::StrCat("mesh ", mesh_.AxesToString()); }

  absl::Status CheckRank(int rank) const {
    const int given = static_cast<int>(spec_.size());
    if (given == rank) return absl::OkStatus();
    PartitionSpec right = spec_;
    right.resize(rank);
    return absl::InvalidArgumentError(
        absl::StrCat(start_, " has ", given, given == 1 ? " entry" : " entries",
                     " but the tensor has ", rank, rank == 1 ? " dimension" : " dimensions",
                     "; give one entry per dimension, None where it is not sharded, as in ",
                     SpecToString(right)));
  }

  absl::StatusOr<AxisList> ResolveAxis(const SpecAxis& axis, int dim) {
    SPMD_ASSIGN_OR_RETURN(const int index, MeshAxis(axis));
    if (index < 0) return PartOfAxis(std::get<std::string>(axis), dim);
    if (used_in_dim_[index] >= 0)
      return Repeated(mesh_.axis_names()[index], used_in_dim_[index], dim);
    SPMD_ASSIGN_OR_RETURN(const AxisList axes, grid_.AxesOf(mesh_, index));
    if (used_ & MaskOf(axes)) return RepeatedPart(mesh_.axis_names()[index], MaskOf(axes), dim);
    Remember(axes, dim);
    used_in_dim_[index] = dim;
    return axes;
  }

  // The index of an axis of the mesh, or -1 for the name of a part of an axis.
  absl::StatusOr<int> MeshAxis(const SpecAxis& axis) const {
    if (const auto* index = std::get_if<int64_t>(&axis)) {
      if (*index >= 0 && *index < mesh_.rank()) return static_cast<int>(*index);
      const std::string right = mesh_.rank() == 0 ? "it has no axes"
                                : mesh_.rank() == 1
                                    ? "its only axis is 0"
                                    : absl::StrCat("its axes are 0 to ", mesh_.rank() - 1);
      return absl::OutOfRangeError(absl::StrCat(start_, " names axis ", *index, ", which ",
                                                MeshText(), " does not have; ", right));
    }
    const std::string& name = std::get<std::string>(axis);
    const absl::StatusOr<int> found = mesh_.AxisIndex(name);
    if (found.ok()) return *found;
    if (name.find(':') != std::string::npos) return -1;
    return absl::InvalidArgumentError(absl::StrCat(start_, " names axis '", name, "', which ",
                                                   MeshText(), " does not have",
                                                   mesh_.SuggestAxis(name)));
  }

  absl::StatusOr<AxisList> PartOfAxis(const std::string& name, int dim) {
    const absl::StatusOr<AxisPart> part = ParseAxisPart(name, mesh_);
    if (!part.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(start_, " names axis '", name, "'; ", part.status().message()));
    }
    const std::optional<AxisList> axes = AxesOfPart(*part, mesh_, grid_);
    if (!axes.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(start_, " names axis '", name, "', which the meshes in use do not allow: '",
                       mesh_.axis_names()[part->axis], "' is split elsewhere for them"));
    }
    if (used_ & MaskOf(*axes)) return RepeatedPart(name, MaskOf(*axes), dim);
    Remember(*axes, dim);
    return *axes;
  }

  void Remember(const AxisList& axes, int dim) {
    used_ |= MaskOf(axes);
    for (AxisId axis : axes) dim_of_[axis] = dim;
  }

  // Returns an error if a sub-axis of `mask` is already used.
  absl::Status RepeatedPart(absl::string_view name, AxisMask mask, int dim) const {
    for (int axis = 0; axis < grid_.num_axes(); ++axis) {
      if (used_ & mask & MaskOf(static_cast<AxisId>(axis)))
        return Repeated(name, dim_of_[axis], dim);
    }
    return absl::OkStatus();
  }

  absl::Status Repeated(absl::string_view name, int first, int second) const {
    const std::string where = first == second
                                  ? absl::StrCat("twice in dimension ", first)
                                  : absl::StrCat("in dimensions ", first, " and ", second);
    return absl::InvalidArgumentError(absl::StrCat(start_, " uses axis '", name, "' of ",
                                                   MeshText(), " ", where,
                                                   "; an axis may shard one dimension, once"));
  }

  const PartitionSpec& spec_;
  const Mesh& mesh_;
  const Grid& grid_;
  const std::string start_;       // "mark_sharding: spec ('data', 'modle')"
  std::vector<int> used_in_dim_;  // by axis of the mesh; -1 if unused
  AxisMask used_ = 0;             // sub-axes; axes of size 1 have none
  int dim_of_[64] = {};           // by used sub-axis
};

}  // namespace

bool HasBlocks(const PartitionSpec& spec) {
  return std::any_of(spec.begin(), spec.end(), [](const SpecEntry& e) { return e.blocks != 1; });
}

absl::StatusOr<BlocksApart> TakeBlocksApart(absl::string_view caller, const PartitionSpec& spec,
                                            const Dims& dims, const Dims& strides) {
  BlocksApart apart;
  for (size_t d = 0; d < spec.size(); ++d) {
    SpecEntry entry = spec[d];
    const int64_t blocks = std::exchange(entry.blocks, 1);
    if (dims[d] % blocks != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(caller, ": spec ", SpecToString(spec), " says that dimension ", d, " is ",
                       blocks, " blocks of one size, but its size is ", dims[d], ", which ", blocks,
                       " does not divide; blocks(n, axes) needs a dimension of size n * k"));
    }
    if (blocks != 1) {
      apart.dims.push_back(blocks);
      apart.strides.push_back(strides[d] * (dims[d] / blocks));
      apart.spec.emplace_back();
    }
    apart.dims.push_back(dims[d] / blocks);
    apart.strides.push_back(strides[d]);
    apart.spec.push_back(std::move(entry));
  }
  return apart;
}

std::string SpecToString(const PartitionSpec& spec) {
  std::vector<std::string> parts;
  for (const SpecEntry& entry : spec) parts.push_back(EntryText(entry));
  return absl::StrCat("(", absl::StrJoin(parts, ", "), parts.size() == 1 ? ",)" : ")");
}

absl::StatusOr<Sharding> ResolveSpec(absl::string_view caller, const PartitionSpec& spec,
                                     const Mesh& mesh, const Grid& grid, int rank) {
  SPMD_CHECK(grid.Refines(mesh), mesh.ToString(), " in ", grid.ToString());
  return SpecResolver(caller, spec, mesh, grid).Resolve(rank);
}

PartitionSpec SpecOf(const Sharding& sharding, const Grid& grid, const Mesh& mesh) {
  std::vector<AxisList> axes_of_mesh(mesh.rank());
  if (grid.Refines(mesh)) {
    for (int i = 0; i < mesh.rank(); ++i) axes_of_mesh[i] = *grid.AxesOf(mesh, i);
  }
  PartitionSpec spec;
  for (const DimSharding& dim : sharding.dims) {
    SpecEntry& entry = spec.emplace_back();
    entry.unconstrained = dim.open && dim.axes.empty();
    for (size_t i = 0; i < dim.axes.size();) {
      int found = -1;
      for (int m = 0; m < mesh.rank() && found < 0; ++m) {
        const AxisList& whole = axes_of_mesh[m];
        if (!whole.empty() && dim.axes.size() - i >= whole.size() &&
            std::equal(whole.begin(), whole.end(), &dim.axes[i])) {
          found = m;
        }
      }
      if (found >= 0) {
        entry.axes.push_back(mesh.axis_names()[found]);
        i += axes_of_mesh[found].size();
      } else {
        entry.axes.push_back(NameOfPart(dim.axes[i], mesh, grid));
        ++i;
      }
    }
  }
  return spec;
}

std::string HloString(const Sharding& sharding, const Grid& grid) {
  if (sharding.IsReplicated()) return "{replicated}";
  std::vector<int64_t> tiles;  // the dims' shards, then the subgroups
  AxisList order;              // all axes, in the order of the tile assignment
  for (const DimSharding& dim : sharding.dims) {
    tiles.push_back(grid.size(dim.axes));
    order.insert(order.end(), dim.axes.begin(), dim.axes.end());
  }
  order.insert(order.end(), sharding.unreduced.begin(), sharding.unreduced.end());
  const bool unreduced = sharding.IsUnreduced();
  if (unreduced) tiles.push_back(grid.size(sharding.unreduced));
  const int64_t replicas = grid.num_devices() / grid.size(order);
  if (replicas > 1) tiles.push_back(replicas);
  for (int i = 0; i < grid.num_axes(); ++i) {
    const auto axis = static_cast<AxisId>(i);
    if (!(sharding.UsedAxes() & MaskOf(axis))) order.push_back(axis);
  }
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < grid.num_devices(); ++i) {
    ids.push_back(grid.device_ids()[grid.WithCoordinate(0, order, i)]);
  }
  const char* subgroups = "";
  if (unreduced) {
    subgroups =
        replicas > 1 ? " last_tile_dims={unreduced, replicated}" : " last_tile_dims={unreduced}";
  } else if (replicas > 1) {
    subgroups = " last_tile_dim_replicate";
  }
  return absl::StrCat("{devices=[", absl::StrJoin(tiles, ","), "]", absl::StrJoin(ids, ","),
                      subgroups, "}");
}

}  // namespace spmd
