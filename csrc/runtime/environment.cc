// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/environment.h"

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace spmd::runtime {

absl::StatusOr<std::optional<int64_t>> EnvironmentDeviceCount() {
  const char* text = std::getenv("SPMD_NUM_DEVICES");
  if (text == nullptr || *text == '\0') return std::optional<int64_t>();
  int64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("SPMD_NUM_DEVICES is '", text,
                                                   "', which is not a positive number of devices"));
  }
  return std::optional<int64_t>(count);
}

bool EnvironmentSync() {
  const char* text = std::getenv("SPMD_SYNC");
  return text != nullptr && *text != '\0' && std::string(text) != "0";
}

}  // namespace spmd::runtime
