// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/environment.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/util/did_you_mean.h"

namespace spmd::runtime {

std::string EnvironmentBackend() {
  const char* name = std::getenv("SPMD_BACKEND");
  return name != nullptr && *name != '\0' ? name : "cpu";
}

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

namespace {

bool IsOn(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' && std::string(text) != "0";
}

bool IsOff(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && std::string(text) == "0";
}

// The number of bytes; `otherwise` if the variable is not a number of MiB.
int64_t Mebibytes(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  int64_t count = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &count) || count < 0) count = otherwise;
  return std::min(count, int64_t{1} << 40) << 20;
}

}  // namespace

bool EnvironmentCoalesce() { return !IsOff("SPMD_COALESCE"); }

bool EnvironmentKeepMemory() { return !IsOff("SPMD_KEEP_MEMORY"); }

std::optional<bool> EnvironmentTurns() {
  if (std::getenv("SPMD_TURNS") == nullptr) return std::nullopt;
  return !IsOff("SPMD_TURNS");
}

bool EnvironmentFreeMoves() { return IsOff("SPMD_PRICE_MOVES"); }

bool EnvironmentSync() { return IsOn("SPMD_SYNC"); }

bool EnvironmentVerify() { return IsOn("SPMD_VERIFY"); }

bool EnvironmentReplay() { return !IsOff("SPMD_REPLAY"); }

bool EnvironmentShortcuts() { return !IsOff("SPMD_SHORTCUTS"); }

bool EnvironmentCheckPasses() { return IsOn("SPMD_CHECK_PASSES"); }

std::string EnvironmentCacheDirectory() {
  const char* given = std::getenv("SPMD_CACHE_DIR");
  if (given != nullptr) return std::string(given) == "0" ? "" : given;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return absl::StrCat(cache, "/torch_spmd");
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return absl::StrCat(home, "/.cache/torch_spmd");
}

int64_t EnvironmentProgramBytes() { return Mebibytes("SPMD_PROGRAM_MEMORY", 512); }

int64_t EnvironmentCacheBytes() { return Mebibytes("SPMD_CACHE_SIZE", 256); }

absl::StatusOr<Log> EnvironmentLog() {
  Log log;
  const char* text = std::getenv("SPMD_LOG");
  if (text == nullptr) return log;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const absl::string_view name = absl::StripAsciiWhitespace(word);
    if (name == "passes") {
      log.passes = true;
    } else if (name == "traffic") {
      log.traffic = true;
    } else {
      const std::optional<std::string> meant = DidYouMean(name, {"passes", "traffic"});
      return absl::InvalidArgumentError(
          absl::StrCat("SPMD_LOG: '", name, "' is none of passes, traffic",
                       meant ? absl::StrCat("; did you mean '", *meant, "'?") : ""));
    }
  }
  return log;
}

}  // namespace spmd::runtime
