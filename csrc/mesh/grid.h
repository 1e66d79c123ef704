// SPDX-License-Identifier: Apache-2.0
// Sub-axes over one order of devices: the coordinates that the compiler works in.
//
// A mesh axis of size 8 is three sub-axes of size 2, major first, so that "half of `model`" can be
// expressed. Meshes over the same devices in the same order that have a common refinement share a
// grid:
//
//   mesh a [data=2, model=4], mesh b [x=8]     grid  data:0=2, model:0=2, model:1=2
//   b's axis x is the list (data:0, model:0, model:1)
//
// A mesh that has no such refinement ([2,3] against [3,2], another order, a subset) gets another
// grid. An axis of size 1 has no sub-axes. A sub-axis has the least bandwidth of all mesh axes that
// it is part of.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/mesh/mesh.h"
#include "csrc/util/scanner.h"

namespace spmd {

// Index of a sub-axis in its grid. A grid has at most 64 sub-axes, so that a set of them is a bit
// mask.
using AxisId = int8_t;
using AxisMask = uint64_t;
// An ordered list, major first.
using AxisList = absl::InlinedVector<AxisId, 6>;

AxisMask MaskOf(absl::Span<const AxisId> axes);
inline AxisMask MaskOf(AxisId axis) { return AxisMask{1} << axis; }
AxisList AxesIn(AxisMask mask);  // ascending

struct SubAxis {
  std::string axis;  // the mesh axis it is part of
  int index;         // 0 is the major part
  int64_t size;      // a prime
  double bandwidth;  // of the links along it, in units of the machine's
};

// Immutable and shared by pointer. Two grids are equal when their devices and the sizes of their
// sub-axes are: names are for people, and bandwidths do not say who holds what.
// Thread safety: immutable.
class Grid {
 public:
  // The grid of one mesh: every axis split into its prime factors, ascending.
  static std::shared_ptr<const Grid> Of(const Mesh& mesh);
  // One grid per class of meshes that have a common refinement, in order of first appearance. Mesh
  // i is written in grids[grid_of[i]]. A sub-axis is named after the first mesh that has it.
  struct Common {
    std::vector<std::shared_ptr<const Grid>> grids;
    std::vector<int> grid_of;
  };
  static Common ForMeshes(absl::Span<const Mesh> meshes);
  // The grid of device 0 alone, without axes; programs without a mesh run on it.
  static std::shared_ptr<const Grid> SingleDevice();

  const std::vector<int64_t>& device_ids() const { return device_ids_; }  // by position
  int64_t num_devices() const { return static_cast<int64_t>(device_ids_.size()); }
  int num_axes() const { return static_cast<int>(axes_.size()); }
  const SubAxis& axis(AxisId id) const { return axes_[id]; }
  int64_t size(AxisId id) const { return axes_[id].size; }
  int64_t size(absl::Span<const AxisId> axes) const;  // product
  int64_t SizeOfMask(AxisMask mask) const;

  // The coordinate of a position (an index into device_ids) along a sub-axis. For a list of axes it
  // is one mixed-radix number, major first.
  int64_t Coordinate(int64_t position, AxisId axis) const;
  int64_t Coordinate(int64_t position, absl::Span<const AxisId> axes) const;
  // The position with coordinate `value` along `axes` and the coordinates of `position` along all
  // other axes.
  int64_t WithCoordinate(int64_t position, absl::Span<const AxisId> axes, int64_t value) const;

  // All sub-axes of the axis called `axis`, major first; empty when there is none of that name.
  AxisList SubAxesOf(absl::string_view axis) const;
  // The sub-axes of axis number `mesh_axis` of `mesh`.
  // Errors: InvalidArgument if this grid does not refine `mesh` or `mesh` has no such axis.
  absl::StatusOr<AxisList> AxesOf(const Mesh& mesh, int mesh_axis) const;
  bool Refines(const Mesh& mesh) const;

  // "model" for all sub-axes of model in order, "model:0" for one, "data,model:1" for a list.
  std::string AxesToString(absl::Span<const AxisId> axes) const;
  // Inverse of AxesToString. Errors: InvalidArgument naming the unknown axis.
  absl::StatusOr<AxisList> ParseAxes(absl::string_view text) const;
  // Takes one "model" or "model:0" from `in` and appends its sub-axes to `axes`.
  absl::Status ParseAxis(Scanner& in, AxisList& axes) const;
  // "[data=2, model=4]", with sub-axes merged into the axes they came from. The devices follow as
  // "devices=[3,1,8..15]" where their order is not 0..n-1. An axis whose parts are not its prime
  // factors in ascending order shows them: "[x=3*2]". A bandwidth other than 1 follows '@', for the
  // whole axis or for each part: "[x=8@0.1]", "[x=2@0.1*4]".
  std::string ToString() const;
  // Inverse of ToString. Errors: InvalidArgument with the offending text, or as Mesh::Create.
  static absl::StatusOr<std::shared_ptr<const Grid>> Parse(absl::string_view text);
  // Leaves the text that follows the grid.
  static absl::StatusOr<std::shared_ptr<const Grid>> Parse(Scanner& in);

  friend bool operator==(const Grid& a, const Grid& b);
  template <typename H>
  friend H AbslHashValue(H h, const Grid& g) {
    h = H::combine(std::move(h), g.device_ids_);
    for (const SubAxis& a : g.axes_) h = H::combine(std::move(h), a.size);
    return h;
  }

  friend bool operator!=(const Grid& a, const Grid& b) { return !(a == b); }

 private:
  Grid(std::vector<int64_t> device_ids, std::vector<SubAxis> axes);
  std::vector<int64_t> device_ids_;
  std::vector<SubAxis> axes_;
  std::vector<int64_t> strides_;  // per sub-axis, in positions
};

using GridPtr = std::shared_ptr<const Grid>;

}  // namespace spmd
