// SPDX-License-Identifier: Apache-2.0
// The text forms of a grid and of lists of its sub-axes.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/mesh/grid.h"
#include "csrc/mesh/mesh_text.h"
#include "csrc/util/did_you_mean.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

// "8", "8@0.1".
std::string SizeText(int64_t size, double bandwidth) {
  return bandwidth == 1 ? absl::StrCat(size) : absl::StrCat(size, "@", NumberToString(bandwidth));
}

}  // namespace

std::string Grid::AxesToString(absl::Span<const AxisId> axes) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < axes.size();) {
    if (axes[i] < 0 || axes[i] >= num_axes()) {  // the sharding belongs to another grid
      parts.push_back(absl::StrCat("?", static_cast<int>(axes[i++])));
      continue;
    }
    const AxisList whole = SubAxesOf(axes_[axes[i]].axis);
    if (axes.size() - i >= whole.size() &&
        std::equal(whole.begin(), whole.end(), axes.begin() + i)) {
      parts.push_back(axes_[axes[i]].axis);
      i += whole.size();
    } else {
      parts.push_back(absl::StrCat(axes_[axes[i]].axis, ":", axes_[axes[i]].index));
      ++i;
    }
  }
  return absl::StrJoin(parts, ",");
}

absl::Status Grid::ParseAxis(Scanner& in, AxisList& axes) const {
  const size_t begin = in.position();
  SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in.Identifier("an axis"));
  const AxisList whole = SubAxesOf(name);
  if (whole.empty()) {
    std::vector<std::string> names;
    for (const SubAxis& a : axes_) {
      if (a.index == 0) names.push_back(a.axis);
    }
    const auto near = DidYouMean(name, names);
    return absl::InvalidArgumentError(
        absl::StrCat("grid ", ToString(), " has no axis '", name, "'",
                     near.has_value() ? absl::StrCat("; did you mean '", *near, "'?") : ""));
  }
  if (!in.Consume(":")) {
    axes.insert(axes.end(), whole.begin(), whole.end());
    return absl::OkStatus();
  }
  SPMD_ASSIGN_OR_RETURN(const int64_t index, in.Integer("the number of a sub-axis"));
  if (index < 0 || index >= static_cast<int64_t>(whole.size())) {
    in.Seek(begin);
    return in.Error(
        absl::StrCat("a sub-axis of '", name, "', ", name, ":0 to ", name, ":", whole.size() - 1));
  }
  axes.push_back(whole[index]);
  return absl::OkStatus();
}

absl::StatusOr<AxisList> Grid::ParseAxes(absl::string_view text) const {
  Scanner in(text);
  AxisList axes;
  if (in.AtEnd()) return axes;
  do {
    SPMD_RETURN_IF_ERROR(ParseAxis(in, axes));
  } while (in.Consume(","));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  return axes;
}

std::string Grid::ToString() const {
  std::vector<std::string> parts;
  for (int i = 0; i < num_axes();) {
    const AxisList whole = SubAxesOf(axes_[i].axis);
    const bool ascending = std::is_sorted(whole.begin(), whole.end(),
                                          [this](AxisId a, AxisId b) { return size(a) < size(b); });
    const bool alike = std::all_of(whole.begin(), whole.end(), [&](AxisId axis) {
      return axes_[axis].bandwidth == axes_[i].bandwidth;
    });
    std::string text = SizeText(size(whole), axes_[i].bandwidth);
    if (!ascending || !alike) {
      text = absl::StrJoin(whole, "*", [this](std::string* out, AxisId axis) {
        absl::StrAppend(out, SizeText(size(axis), axes_[axis].bandwidth));
      });
    }
    parts.push_back(absl::StrCat(axes_[i].axis, "=", text));
    i += static_cast<int>(whole.size());
  }
  std::string out = absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
  for (int64_t i = 0; i < num_devices(); ++i) {
    if (device_ids_[i] != i) {
      return absl::StrCat(out, " devices=[", DeviceIdsText(device_ids_), "]");
    }
  }
  return out;
}

absl::StatusOr<GridPtr> Grid::Parse(Scanner& in) {
  std::vector<std::string> names;
  std::vector<int64_t> shape;  // as written: one entry per axis
  std::vector<double> bandwidths;
  std::vector<int64_t> parts;  // one entry per part between '*'
  std::vector<double> part_bandwidths;
  std::vector<std::string> part_names;
  int64_t devices = 1;
  SPMD_RETURN_IF_ERROR(in.Expect("["));
  while (!in.Consume("]")) {
    if (!names.empty()) SPMD_RETURN_IF_ERROR(in.Expect(","));
    SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in.Identifier("the name of an axis"));
    SPMD_RETURN_IF_ERROR(in.Expect("="));
    names.emplace_back(name);
    shape.push_back(1);
    bandwidths.push_back(0);
    do {
      SPMD_ASSIGN_OR_RETURN(const int64_t size, in.Integer("the size of an axis"));
      if (size < 1 || size > kMaxDevices / devices) {
        return absl::InvalidArgumentError(
            absl::StrCat("axis '", names.back(), "' of size ", size,
                         ": sizes are at least 1, and a mesh has at most 2^20 devices"));
      }
      devices *= size;
      shape.back() *= size;
      parts.push_back(size);
      part_names.push_back(absl::StrCat("part", parts.size()));
      double bandwidth = 1;
      if (in.Consume("@")) {
        SPMD_ASSIGN_OR_RETURN(bandwidth, in.Number("a bandwidth"));
      }
      part_bandwidths.push_back(bandwidth);
      bandwidths.back() = std::max(bandwidths.back(), bandwidth);
    } while (in.Consume("*"));
  }
  SPMD_ASSIGN_OR_RETURN(std::vector<int64_t> ids, ParseDevicesOr(in, devices));
  // The mesh of the parts gives the grid its sub-axes and bandwidths. The mesh as written gives the
  // names: it comes first, and it is nowhere slower than the parts.
  SPMD_ASSIGN_OR_RETURN(const Mesh written, Mesh::Create(ids, shape, names, bandwidths));
  SPMD_ASSIGN_OR_RETURN(const Mesh split, Mesh::Create(ids, parts, part_names, part_bandwidths));
  return ForMeshes({written, split}).grids[0];
}

absl::StatusOr<GridPtr> Grid::Parse(absl::string_view text) {
  Scanner in(text);
  SPMD_ASSIGN_OR_RETURN(GridPtr grid, Parse(in));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  return grid;
}

}  // namespace spmd
