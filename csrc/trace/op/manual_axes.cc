// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/manual_axes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/mesh/mesh_text.h"
#include "csrc/sharding/spec_text.h"
#include "csrc/util/scanner.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

std::vector<std::string>& KnownNames() {
  static auto* const names = new std::vector<std::string>;
  return *names;
}

std::vector<std::string> AxesIn(const PartitionSpec& spec, const Mesh& mesh) {
  std::vector<std::string> names;
  for (const SpecEntry& entry : spec) {
    for (const SpecAxis& axis : entry.axes) {
      if (const auto* const name = std::get_if<std::string>(&axis)) {
        names.push_back(*name);
      } else {
        names.push_back(mesh.axis_names().at(static_cast<size_t>(std::get<int64_t>(axis))));
      }
    }
  }
  return names;
}

absl::StatusOr<BorderCall> Parse(bool enters, const std::string& border, const std::string& mesh) {
  Scanner of_mesh(mesh), in(border);
  SPMD_ASSIGN_OR_RETURN(Mesh on, ParseMeshText(of_mesh));
  BorderCall call{.enters = enters, .mesh = std::move(on), .spec = {}, .all = {}};
  SPMD_ASSIGN_OR_RETURN(call.spec, ParseSpecText(in));
  std::vector<std::string> names = AxesIn(call.spec, call.mesh);
  if (in.ConsumeWord("all")) {
    SPMD_ASSIGN_OR_RETURN(const PartitionSpec all, ParseSpecText(in));
    call.all = AxesIn(all, call.mesh);
    names.insert(names.end(), call.all.begin(), call.all.end());
  }
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  call.axes = ManualAxesOf(names);
  return call;
}

}  // namespace

ManualAxes ManualAxesOf(absl::Span<const std::string> names) {
  ManualAxes axes = 0;
  std::vector<std::string>& known = KnownNames();
  for (const std::string& name : names) {
    const auto at = std::find(known.begin(), known.end(), name);
    const auto bit = at - known.begin();
    TORCH_CHECK(bit < 64, "a process can have manual axes of 64 names; '", name, "' is one more");
    if (at == known.end()) known.push_back(name);
    axes |= ManualAxes{1} << bit;
  }
  return axes;
}

std::vector<std::string> NamesOf(ManualAxes axes) {
  std::vector<std::string> names;
  const std::vector<std::string>& known = KnownNames();
  for (size_t bit = 0; bit < known.size(); ++bit) {
    if ((axes >> bit & 1) != 0) names.push_back(known[bit]);
  }
  return names;
}

std::string QuotedNames(absl::Span<const std::string> names) {
  const std::string list = absl::StrJoin(
      names, ", ",
      [](std::string* out, const std::string& name) { absl::StrAppend(out, "'", name, "'"); });
  return absl::StrCat("(", list, names.size() == 1 ? ",)" : ")");
}

std::string AllBorder(int64_t rank, absl::Span<const std::string> names) {
  const std::vector<std::string> none(static_cast<size_t>(rank), "None");
  return absl::StrCat("(", absl::StrJoin(none, ", "), rank == 1 ? ",)" : ")", " all",
                      QuotedNames(names));
}

std::string FirstBorder(int64_t rank, absl::Span<const std::string> names) {
  std::vector<std::string> entries(static_cast<size_t>(rank), "None");
  entries[0] = QuotedNames(names);
  return absl::StrCat("(", absl::StrJoin(entries, ", "), rank == 1 ? ",)" : ")");
}

absl::StatusOr<Sharding> BorderCall::ShardingIn(const Grid& grid, int rank) const {
  SPMD_ASSIGN_OR_RETURN(Sharding sharding, ResolveSpec("shard_map", spec, mesh, grid, rank));
  sharding = sharding.Closed();
  AxisList& rest = enters ? sharding.manual : sharding.unreduced;
  for (const std::string& name : all) {
    const auto& names = mesh.axis_names();
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      return absl::InvalidArgumentError("there is no axis '" + name + "'");
    }
    SPMD_ASSIGN_OR_RETURN(const AxisList axes,
                          grid.AxesOf(mesh, static_cast<int>(at - names.begin())));
    rest.insert(rest.end(), axes.begin(), axes.end());
  }
  std::sort(rest.begin(), rest.end());
  return sharding;
}

const BorderCall* BorderOf(const OpInfo& op, absl::Span<const c10::IValue> args) {
  if (op.border == OpInfo::Border::kNone) return nullptr;
  using Key = std::tuple<bool, std::string, std::string>;
  static auto* const known = new absl::flat_hash_map<Key, std::unique_ptr<const BorderCall>>;
  const bool enters = op.border == OpInfo::Border::kEnters;
  Key key(enters, args[2].toStringRef(), args[3].toStringRef());
  if (const auto found = known->find(key); found != known->end()) return found->second.get();
  absl::StatusOr<BorderCall> call = Parse(enters, std::get<1>(key), std::get<2>(key));
  TORCH_CHECK(call.ok(), op.name, ": ", std::string(call.status().message()));
  auto& made = (*known)[std::move(key)];
  made = std::make_unique<const BorderCall>(*std::move(call));
  return made.get();
}

}  // namespace spmd::trace
