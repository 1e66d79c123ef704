// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/grid.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/prime_factors.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

// The strides at which the axes of a mesh begin and end: 1 = s₀ < s₁ < … = number of devices. Each
// divides the next. Meshes over the same devices have a common refinement if their strides taken
// together still do.
using Strides = std::vector<int64_t>;

Strides StridesOf(const Mesh& mesh) {
  Strides strides = {1};
  for (int i = mesh.rank() - 1; i >= 0; --i) {
    if (mesh.shape()[i] > 1) strides.push_back(strides.back() * mesh.shape()[i]);
  }
  return strides;
}

// The union of `a` and `b`, or nullopt when some member does not divide the next.
std::optional<Strides> Refine(const Strides& a, const Strides& b) {
  Strides both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  for (size_t i = 1; i < both.size(); ++i) {
    if (both[i] % both[i - 1] != 0) return std::nullopt;
  }
  return both;
}

// The axes of `mesh` split at `strides`, and each piece into its prime factors. They have the
// bandwidths of `mesh`.
std::vector<SubAxis> SubAxes(const Mesh& mesh, const Strides& strides) {
  std::vector<SubAxis> axes;
  int64_t outer = mesh.size();
  for (int i = 0; i < mesh.rank(); ++i) {
    const int64_t inner = outer / mesh.shape()[i];
    int index = 0;
    for (size_t s = strides.size(); s-- > 1;) {
      if (strides[s] > outer || strides[s - 1] < inner) continue;
      for (int64_t prime : PrimeFactors(strides[s] / strides[s - 1])) {
        axes.push_back({mesh.axis_names()[i], index++, prime, mesh.axis_bandwidths()[i]});
      }
    }
    outer = inner;
  }
  return axes;
}

// Lowers the bandwidth of every sub-axis that is part of a slower axis of `mesh`.
// Requires: the axes refine the mesh.
void LowerBandwidths(const Mesh& mesh, std::vector<SubAxis>& axes) {
  size_t a = 0;
  for (int i = 0; i < mesh.rank(); ++i) {
    for (int64_t size = 1; size < mesh.shape()[i]; size *= axes[a++].size) {
      axes[a].bandwidth = std::min(axes[a].bandwidth, mesh.axis_bandwidths()[i]);
    }
  }
}

}  // namespace

AxisList AxesIn(AxisMask mask) {
  AxisList axes;
  for (; mask != 0; mask &= mask - 1) axes.push_back(static_cast<AxisId>(std::countr_zero(mask)));
  return axes;
}

AxisMask MaskOf(absl::Span<const AxisId> axes) {
  AxisMask mask = 0;
  for (AxisId axis : axes) mask |= MaskOf(axis);
  return mask;
}

Grid::Grid(std::vector<int64_t> device_ids, std::vector<SubAxis> axes)
    : device_ids_(std::move(device_ids)), axes_(std::move(axes)), strides_(axes_.size()) {
  int64_t stride = 1;
  for (size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = stride;
    stride *= axes_[i].size;
  }
  SPMD_CHECK(stride == num_devices(), "the sub-axes give ", stride, " devices, not ",
             num_devices());
}

GridPtr Grid::Of(const Mesh& mesh) {
  return GridPtr(new Grid(mesh.device_ids(), SubAxes(mesh, StridesOf(mesh))));
}

Grid::Common Grid::ForMeshes(absl::Span<const Mesh> meshes) {
  struct Class {
    std::vector<const Mesh*> meshes;
    Strides strides;
  };
  std::vector<Class> classes;
  Common common;
  for (const Mesh& mesh : meshes) {
    const Strides strides = StridesOf(mesh);
    size_t k = 0;
    for (; k < classes.size(); ++k) {
      if (classes[k].meshes[0]->device_ids() != mesh.device_ids()) continue;
      if (auto refined = Refine(classes[k].strides, strides)) {
        classes[k].strides = *std::move(refined);
        classes[k].meshes.push_back(&mesh);
        break;
      }
    }
    if (k == classes.size()) classes.push_back({{&mesh}, strides});
    common.grid_of.push_back(static_cast<int>(k));
  }
  for (const Class& c : classes) {
    std::vector<SubAxis> axes = SubAxes(*c.meshes[0], c.strides);
    for (const Mesh* mesh : c.meshes) LowerBandwidths(*mesh, axes);
    common.grids.push_back(GridPtr(new Grid(c.meshes[0]->device_ids(), std::move(axes))));
  }
  return common;
}

GridPtr Grid::SingleDevice() { return GridPtr(new Grid({0}, {})); }

int64_t Grid::size(absl::Span<const AxisId> axes) const {
  int64_t n = 1;
  for (AxisId axis : axes) n *= size(axis);
  return n;
}

int64_t Grid::SizeOfMask(AxisMask mask) const {
  int64_t n = 1;
  for (int i = 0; i < num_axes(); ++i) {
    if (mask & MaskOf(static_cast<AxisId>(i))) n *= axes_[i].size;
  }
  return n;
}

int64_t Grid::Coordinate(int64_t position, AxisId axis) const {
  return position / strides_[axis] % axes_[axis].size;
}

int64_t Grid::Coordinate(int64_t position, absl::Span<const AxisId> axes) const {
  int64_t coordinate = 0;
  for (AxisId axis : axes) coordinate = coordinate * size(axis) + Coordinate(position, axis);
  return coordinate;
}

int64_t Grid::WithCoordinate(int64_t position, absl::Span<const AxisId> axes, int64_t value) const {
  for (size_t i = axes.size(); i-- > 0;) {
    const AxisId axis = axes[i];
    position += (value % size(axis) - Coordinate(position, axis)) * strides_[axis];
    value /= size(axis);
  }
  return position;
}

absl::StatusOr<AxisList> Grid::AxesOf(const Mesh& mesh, int mesh_axis) const {
  if (mesh_axis < 0 || mesh_axis >= mesh.rank()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mesh ", mesh.AxesToString(), " has ", mesh.rank(), " axes; there is no axis ", mesh_axis));
  }
  if (!Refines(mesh)) {
    return absl::InvalidArgumentError(absl::StrCat("mesh ", mesh.ToString(),
                                                   " cannot be written in grid ", ToString(),
                                                   "; it needs a grid of its own"));
  }
  int64_t inner = 1;
  for (int i = mesh.rank() - 1; i > mesh_axis; --i) inner *= mesh.shape()[i];
  const int64_t outer = inner * mesh.shape()[mesh_axis];
  AxisList axes;
  for (int i = 0; i < num_axes(); ++i) {
    if (strides_[i] >= inner && strides_[i] < outer) axes.push_back(static_cast<AxisId>(i));
  }
  return axes;
}

bool Grid::Refines(const Mesh& mesh) const {
  if (device_ids_ != mesh.device_ids()) return false;
  for (int64_t stride : StridesOf(mesh)) {
    if (stride != num_devices() &&
        std::find(strides_.begin(), strides_.end(), stride) == strides_.end()) {
      return false;
    }
  }
  return true;
}

AxisList Grid::SubAxesOf(absl::string_view axis) const {
  AxisList axes;
  for (int i = 0; i < num_axes(); ++i) {
    if (axes_[i].axis == axis) axes.push_back(static_cast<AxisId>(i));
  }
  return axes;
}

bool operator==(const Grid& a, const Grid& b) {
  return a.device_ids_ == b.device_ids_ &&
         std::equal(a.axes_.begin(), a.axes_.end(), b.axes_.begin(), b.axes_.end(),
                    [](const SubAxis& x, const SubAxis& y) { return x.size == y.size; });
}

}  // namespace spmd
