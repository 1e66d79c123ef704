// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/axis_part.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/util/prime_factors.h"
#include "csrc/util/scanner.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

// "'model' has the parts 'model:0' of size 2, 'model:1' of size 2", or "'model' has no parts".
std::string PartsText(absl::string_view axis, absl::Span<const int64_t> factors) {
  if (factors.size() < 2) return absl::StrCat("'", axis, "' has no parts");
  std::vector<std::string> parts;
  for (size_t k = 0; k < factors.size(); ++k) {
    parts.push_back(absl::StrCat("'", axis, ":", k, "' of size ", factors[k]));
  }
  return absl::StrCat("'", axis, "' has the parts ", absl::StrJoin(parts, ", "));
}

}  // namespace

absl::StatusOr<AxisPart> ParseAxisPart(absl::string_view name, const Mesh& mesh) {
  const absl::string_view axis = name.substr(0, name.find(':'));
  const absl::StatusOr<int> found = mesh.AxisIndex(axis);
  if (!found.ok()) return found.status();
  const int64_t n = mesh.shape()[*found];
  const std::vector<int64_t> factors = PrimeFactors(n);
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("axis ", PartsText(axis, factors), " in mesh ", mesh.AxesToString()));
  Scanner in(name.substr(axis.size()));
  if (!in.Consume(":")) return wrong;
  if (in.Consume("(")) {
    const auto before = in.Integer("what is major to the part");
    if (!before.ok() || !in.Consume(")")) return wrong;
    const auto size = in.Integer("the size of the part");
    if (!size.ok() || !in.AtEnd() || *before < 1 || *size < 2 || *before > n || *size > n ||
        n % *before != 0 || (n / *before) % *size != 0) {
      return wrong;
    }
    return AxisPart{*found, *before, *size};
  }
  const auto index = in.Integer("the number of the part");
  if (!index.ok() || !in.AtEnd() || *index < 0 || *index >= static_cast<int64_t>(factors.size())) {
    return wrong;
  }
  AxisPart part{*found, 1, factors[*index]};
  for (int64_t k = 0; k < *index; ++k) part.before *= factors[k];
  return part;
}

std::optional<AxisList> AxesOfPart(const AxisPart& part, const Mesh& mesh, const Grid& grid) {
  const auto whole = grid.AxesOf(mesh, part.axis);
  if (!whole.ok()) return std::nullopt;
  AxisList axes;
  int64_t before = 1, size = 1;
  for (const AxisId axis : *whole) {
    if (before >= part.before && size < part.size) {
      axes.push_back(axis);
      size *= grid.size(axis);
    }
    before *= grid.size(axis);
    if (axes.empty() && before > part.before) return std::nullopt;
  }
  if (size != part.size) return std::nullopt;
  return axes;
}

std::string NameOfPart(AxisId sub_axis, const Mesh& mesh, const Grid& grid) {
  for (int m = 0; m < mesh.rank(); ++m) {
    const auto whole = grid.AxesOf(mesh, m);
    if (!whole.ok()) continue;
    int64_t before = 1;
    for (const AxisId axis : *whole) {
      if (axis == sub_axis) {
        const std::string& name = mesh.axis_names()[m];
        const std::vector<int64_t> factors = PrimeFactors(mesh.shape()[m]);
        int64_t major = 1;
        for (size_t k = 0; k < factors.size() && major <= before; ++k) {
          if (major == before && factors[k] == grid.size(axis)) return absl::StrCat(name, ":", k);
          major *= factors[k];
        }
        return absl::StrCat(name, ":(", before, ")", grid.size(axis));
      }
      before *= grid.size(axis);
    }
  }
  return grid.AxesToString({sub_axis});
}

GridPtr GridWithParts(const Mesh& mesh, absl::Span<const std::string> names) {
  std::vector<int64_t> shape;
  std::vector<AxisPart> parts(mesh.rank(), AxisPart{-1, 1, 1});
  bool split = false;
  for (const std::string& name : names) {
    if (name.find(":(") == std::string::npos) continue;
    const auto part = ParseAxisPart(name, mesh);
    if (!part.ok()) continue;
    parts[part->axis] = *part;
    split = true;
  }
  GridPtr plain = Grid::Of(mesh);
  if (!split) return plain;
  for (int m = 0; m < mesh.rank(); ++m) {
    shape.push_back(parts[m].before);
    shape.push_back(parts[m].size);
    shape.push_back(mesh.shape()[m] / (parts[m].before * parts[m].size));
  }
  const auto finer = Mesh::Create(mesh.device_ids(), std::move(shape), std::nullopt);
  if (!finer.ok()) return plain;
  return Grid::ForMeshes({mesh, *finer}).grids[0];
}

}  // namespace spmd
