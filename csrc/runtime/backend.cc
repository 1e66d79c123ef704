// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/backend.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/runtime/backend_factory.h"
#include "csrc/util/did_you_mean.h"
#include "spmd_backend_list.h"

namespace spmd::runtime {

absl::StatusOr<std::shared_ptr<Backend>> MakeBackend(absl::string_view name,
                                                     std::optional<int64_t> devices,
                                                     std::optional<int64_t> otherwise,
                                                     const PartOfJob* job) {
  if (devices.has_value() && *devices < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a backend needs at least one device; got ", *devices));
  }
  const size_t colon = name.find(':');
  const std::string head(name.substr(0, colon));
  const std::string rest(colon == absl::string_view::npos ? "" : name.substr(colon + 1));
  for (const backends::BackendEntry& entry : backends::kBackends) {
    if (head == entry.name) return entry.make({std::string(name), rest, devices, otherwise, job});
  }
  const std::vector<std::string> known = BackendNames();
  const std::optional<std::string> near = DidYouMean(head, known);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown backend '", head, "'; known are ", absl::StrJoin(known, ", "),
                   near.has_value() ? absl::StrCat("; did you mean '", *near, "'?") : ""));
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const backends::BackendEntry& entry : backends::kBackends) names.push_back(entry.name);
  return names;
}

namespace backends {

absl::StatusOr<std::optional<int64_t>> RequestedDevices(const BackendRequest& request) {
  if (request.arguments.empty() || request.devices.has_value()) return request.devices;
  int64_t count = 0;
  if (!absl::SimpleAtoi(request.arguments, &count) || count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("backend '", request.name, "': '",
                                                   request.arguments,
                                                   "' is not a positive number of devices"));
  }
  return std::optional<int64_t>(count);
}

}  // namespace backends
}  // namespace spmd::runtime
