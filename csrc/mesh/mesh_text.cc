// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/mesh_text.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd {

std::string DeviceIdsText(absl::Span<const int64_t> ids) {
  std::string out;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] - 1 == ids[end - 1]) ++end;
    if (end - i < 3) end = i + 1;
    absl::StrAppend(&out, i == 0 ? "" : ",", ids[i]);
    if (end > i + 1) absl::StrAppend(&out, "..", ids[end - 1]);
    i = end;
  }
  return out;
}

absl::StatusOr<std::vector<int64_t>> ParseDeviceIds(Scanner& in) {
  std::vector<int64_t> ids;
  do {
    SPMD_ASSIGN_OR_RETURN(const int64_t first, in.Integer("a device id"));
    int64_t last = first;
    if (in.Consume("..")) {
      SPMD_ASSIGN_OR_RETURN(last, in.Integer("the last device id of the range"));
    }
    if (last < first || last - first >= kMaxDevices) {
      return absl::InvalidArgumentError(
          absl::StrCat("device range ", first, "..", last, " does not ascend, or is too long"));
    }
    for (int64_t i = 0; i <= last - first; ++i) ids.push_back(first + i);
  } while (in.Consume(","));
  return ids;
}

absl::StatusOr<std::vector<int64_t>> ParseDevicesOr(Scanner& in, int64_t count) {
  if (in.ConsumeWord("devices")) {
    SPMD_RETURN_IF_ERROR(in.Expect("="));
    SPMD_RETURN_IF_ERROR(in.Expect("["));
    SPMD_ASSIGN_OR_RETURN(std::vector<int64_t> ids, ParseDeviceIds(in));
    SPMD_RETURN_IF_ERROR(in.Expect("]"));
    return ids;
  }
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::string MeshText(const Mesh& mesh) {
  std::string text = mesh.AxesToString();
  for (int64_t i = 0; i < mesh.size(); ++i) {
    if (mesh.device_ids()[i] != i) {
      return absl::StrCat(text, " devices=[", DeviceIdsText(mesh.device_ids()), "]");
    }
  }
  return text;
}

absl::StatusOr<Mesh> ParseMeshText(Scanner& in) {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  std::vector<double> bandwidths;
  int64_t devices = 1;
  SPMD_RETURN_IF_ERROR(in.Expect("["));
  while (!in.Consume("]")) {
    if (!names.empty()) SPMD_RETURN_IF_ERROR(in.Expect(","));
    SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in.Identifier("the name of an axis"));
    names.emplace_back(name);
    SPMD_RETURN_IF_ERROR(in.Expect("="));
    SPMD_ASSIGN_OR_RETURN(shape.emplace_back(), in.Integer("the size of an axis"));
    if (shape.back() < 1 || shape.back() > kMaxDevices / devices) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis '", names.back(), "' of size ", shape.back(),
                       ": sizes are at least 1, and a mesh has at most 2^20 devices"));
    }
    devices *= shape.back();
    bandwidths.push_back(1);
    if (in.Consume("@")) {
      SPMD_ASSIGN_OR_RETURN(bandwidths.back(), in.Number("a bandwidth"));
    }
  }
  SPMD_ASSIGN_OR_RETURN(std::vector<int64_t> ids, ParseDevicesOr(in, devices));
  return Mesh::Create(std::move(ids), std::move(shape), std::move(names), std::move(bandwidths));
}

}  // namespace spmd
