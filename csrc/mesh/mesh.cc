// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/mesh.h"

#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/util/scanner.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

// The most device ids that a message lists when they are not a range.
constexpr int64_t kMostShown = 64;

// "(2, 4)", "(8,)": a tuple as the user would write it.
std::string TupleText(absl::Span<const int64_t> items) {
  return absl::StrCat("(", absl::StrJoin(items, ", "), items.size() == 1 ? ",)" : ")");
}

std::string NamesText(absl::Span<const std::string> names) {
  return absl::StrCat("(",
                      absl::StrJoin(names, ", ",
                                    [](std::string* out, const std::string& name) {
                                      absl::StrAppend(out, "'", name, "'");
                                    }),
                      names.size() == 1 ? ",)" : ")");
}

// A legal name near `name`: every character that is not a letter or digit becomes '_'.
std::string AsIdentifier(absl::string_view name) {
  std::string out;
  for (char c : name) {
    out.push_back(absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_');
  }
  if (out.empty() || absl::ascii_isdigit(static_cast<unsigned char>(out[0]))) out = "axis" + out;
  return out;
}

absl::Status CheckShape(absl::Span<const int64_t> ids, absl::Span<const int64_t> shape) {
  int64_t product = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 1) {
      return absl::InvalidArgumentError(absl::StrCat("Mesh: axis ", i, " of shape ",
                                                     TupleText(shape), " has size ", shape[i],
                                                     "; sizes must be at least 1"));
    }
    if (__builtin_mul_overflow(product, shape[i], &product)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Mesh: shape ", TupleText(shape), " has more devices than can be counted"));
    }
  }
  if (product == static_cast<int64_t>(ids.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Mesh: shape ", TupleText(shape), " needs ", product,
                   product == 1 ? " device id but " : " device ids but ", ids.size(),
                   ids.size() == 1 ? " was given" : " were given",
                   "; give one id per device, or a shape whose product is ", ids.size()));
}

absl::Status CheckIds(absl::Span<const int64_t> ids) {
  absl::flat_hash_map<int64_t, size_t> seen;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("Mesh: device id ", ids[i], " at position ", i,
                                                     " is negative; ids are numbers from 0"));
    }
    const auto [it, inserted] = seen.try_emplace(ids[i], i);
    if (!inserted) {
      return absl::InvalidArgumentError(absl::StrCat("Mesh: device id ", ids[i],
                                                     " occurs twice, at positions ", it->second,
                                                     " and ", i, "; give each device once"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNames(absl::Span<const std::string> names, absl::Span<const int64_t> shape) {
  if (names.size() != shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Mesh: shape ", TupleText(shape), " has ", shape.size(),
                     shape.size() == 1 ? " axis but " : " axes but ", names.size(),
                     names.size() == 1 ? " name was" : " names were", " given, ", NamesText(names),
                     "; give one name per axis"));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!IsIdentifier(names[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("Mesh: name '", names[i], "' of axis ", i,
                       " is not an identifier; use letters, digits and '_', as in '",
                       AsIdentifier(names[i]), "'"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (names[i] == names[j]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Mesh: axes ", j, " and ", i, " are both named '", names[i], "'; names must differ"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBandwidths(absl::Span<const double> bandwidths, absl::Span<const int64_t> shape) {
  if (bandwidths.size() != shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Mesh: shape ", TupleText(shape), " has ", shape.size(),
                     shape.size() == 1 ? " axis but " : " axes but ", bandwidths.size(),
                     bandwidths.size() == 1 ? " bandwidth was" : " bandwidths were",
                     " given; give one per axis, 1 for the machine's"));
  }
  for (size_t i = 0; i < bandwidths.size(); ++i) {
    if (std::isfinite(bandwidths[i]) && bandwidths[i] > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "Mesh: the bandwidth of axis ", i, " is ", bandwidths[i],
        "; it must be positive, in units of the machine's: 0.1 for links ten times slower"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Mesh> Mesh::Create(std::vector<int64_t> device_ids, std::vector<int64_t> shape,
                                  std::optional<std::vector<std::string>> axis_names,
                                  std::optional<std::vector<double>> axis_bandwidths) {
  SPMD_RETURN_IF_ERROR(CheckShape(device_ids, shape));
  SPMD_RETURN_IF_ERROR(CheckIds(device_ids));
  Mesh mesh;
  if (axis_names.has_value()) {
    SPMD_RETURN_IF_ERROR(CheckNames(*axis_names, shape));
    mesh.axis_names_ = *std::move(axis_names);
  } else {
    for (size_t i = 0; i < shape.size(); ++i) mesh.axis_names_.push_back(absl::StrCat("axis", i));
  }
  if (axis_bandwidths.has_value()) {
    SPMD_RETURN_IF_ERROR(CheckBandwidths(*axis_bandwidths, shape));
    mesh.axis_bandwidths_ = *std::move(axis_bandwidths);
  } else {
    mesh.axis_bandwidths_.assign(shape.size(), 1);
  }
  mesh.device_ids_ = std::move(device_ids);
  mesh.shape_ = std::move(shape);
  return mesh;
}

absl::StatusOr<int> Mesh::AxisIndex(absl::string_view name) const {
  for (int i = 0; i < rank(); ++i) {
    if (axis_names_[i] == name) return i;
  }
  return absl::NotFoundError(
      absl::StrCat("mesh ", AxesToString(), " has no axis '", name, "'", SuggestAxis(name)));
}

std::string Mesh::SuggestAxis(absl::string_view name) const {
  if (const auto near = DidYouMean(name, axis_names_)) {
    return absl::StrCat("; did you mean '", *near, "'?");
  }
  if (axis_names_.empty()) return "";
  return absl::StrCat(rank() == 1 ? "; its axis is '" : "; its axes are '",
                      absl::StrJoin(axis_names_, "', '"), "'");
}

std::string Mesh::AxesToString() const {
  std::string out = "[";
  for (int i = 0; i < rank(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ", ", axis_names_[i], "=", shape_[i]);
    if (axis_bandwidths_[i] != 1) absl::StrAppend(&out, "@", NumberToString(axis_bandwidths_[i]));
  }
  return out + "]";
}

std::string Mesh::ToString() const {
  bool is_range = size() > 1;
  for (int64_t i = 0; i < size(); ++i) {
    is_range = is_range && device_ids_[i] - device_ids_[0] == i;
  }
  if (is_range) {
    return absl::StrCat(AxesToString(), " over devices ", device_ids_.front(), "..",
                        device_ids_.back());
  }
  const auto shown = absl::MakeConstSpan(device_ids_)
                         .first(size() > kMostShown ? kMostShown / 4 : device_ids_.size());
  std::string ids = absl::StrJoin(shown, ", ");
  const size_t more = device_ids_.size() - shown.size();
  if (more > 0) absl::StrAppend(&ids, ", … and ", more, " more");
  return absl::StrCat(AxesToString(), size() == 1 ? " over device " : " over devices ", ids);
}

}  // namespace spmd
