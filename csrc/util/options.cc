// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/options.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/util/did_you_mean.h"
#include "csrc/util/status.h"

namespace spmd {

namespace {

absl::Status BadValue(const char* name, const char* text, const char* what_is_wrong) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is '", text, "', which is ", what_is_wrong));
}

// Reads variables one after another, up to the first error.
class Reader {
 public:
  explicit Reader(EnvironmentVariable variable) : variable_(variable) {}

  const absl::Status& status() const { return status_; }

  // Null if the variable is not set, or empty.
  const char* Text(const char* name) const {
    const char* const text = variable_(name);
    return text != nullptr && *text != '\0' ? text : nullptr;
  }

  void Read(const char* name, std::string& to) const {
    if (const char* const text = Text(name)) to = text;
  }

  void Read(const char* name, bool& to) {
    const char* const text = Text(name);
    if (text != nullptr && !absl::SimpleAtob(text, &to)) {
      Fail(BadValue(name, text, "neither 0 nor 1"));
    }
  }

  void Read(const char* name, std::optional<bool>& to) {
    if (Text(name) == nullptr) return;
    bool on = false;
    Read(name, on);
    to = on;
  }

  void Read(const char* name, Turns& to) {
    if (Text(name) == nullptr) return;
    bool on = false;
    Read(name, on);
    to = on ? Turns::kAlways : Turns::kNever;
  }

  void Read(const char* name, std::optional<int64_t>& count) {
    const char* const text = Text(name);
    if (text == nullptr) return;
    int64_t given = 0;
    if (!absl::SimpleAtoi(text, &given) || given < 1) {
      return Fail(BadValue(name, text, "not a positive number of devices"));
    }
    count = given;
  }

  void ReadSeconds(const char* name, double& seconds) {
    const char* const text = Text(name);
    if (text == nullptr) return;
    double given = 0;
    if (!absl::SimpleAtod(text, &given) || !(given > 0) || given > 1e6) {
      return Fail(BadValue(name, text, "not a positive number of seconds"));
    }
    seconds = given;
  }

  void ReadMebibytes(const char* name, int64_t& bytes) {
    const char* const text = Text(name);
    if (text == nullptr) return;
    int64_t count = 0;
    if (!absl::SimpleAtoi(text, &count) || count < 0) {
      return Fail(BadValue(name, text, "not a number of MiB"));
    }
    bytes = std::min(count, int64_t{1} << 40) << 20;
  }

  void Read(const char* name, Options::Log& log) {
    const char* const text = Text(name);
    if (text == nullptr) return;
    for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
      const absl::string_view word = absl::StripAsciiWhitespace(part);
      if (word == "passes") {
        log.passes = true;
      } else if (word == "traffic") {
        log.traffic = true;
      } else {
        const std::optional<std::string> meant = DidYouMean(word, {"passes", "traffic"});
        return Fail(absl::InvalidArgumentError(
            absl::StrCat(name, ": '", word, "' is none of passes, traffic",
                         meant ? absl::StrCat("; did you mean '", *meant, "'?") : "")));
      }
    }
  }

 private:
  void Fail(absl::Status status) { status_.Update(std::move(status)); }

  EnvironmentVariable variable_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Options> OptionsFrom(EnvironmentVariable variable) {
  Options options;
  Reader reader(variable);
  reader.Read("SPMD_BACKEND", options.backend);
  reader.Read("SPMD_NUM_DEVICES", options.num_devices);
  reader.Read("SPMD_ONE_PLACE", options.one_place);
  reader.Read("SPMD_COALESCE", options.coalesce);
  reader.Read("SPMD_TURNS", options.turns);
  reader.Read("SPMD_PRICE_MOVES", options.price_moves);
  reader.Read("SPMD_REPLAY", options.replay);
  reader.Read("SPMD_VERIFY", options.verify);
  reader.Read("SPMD_CHECK_PASSES", options.check_passes);
  reader.Read("SPMD_LOG", options.log);
  if (const char* const file = reader.Text("SPMD_DUMP")) options.dump = file;
  reader.Read("SPMD_SYNC", options.sync);
  reader.Read("SPMD_DISTRIBUTED", options.distributed);
  reader.ReadSeconds("SPMD_TIMEOUT", options.timeout);
  reader.Read("SPMD_EXACT", options.exact);
  reader.Read("SPMD_OVERLAP", options.overlap);
  reader.Read("SPMD_KEEP_MEMORY", options.keep_memory);
  reader.ReadMebibytes("SPMD_PROGRAM_MEMORY", options.program_memory);
  SPMD_RETURN_IF_ERROR(reader.status());
  return options;
}

absl::StatusOr<Options> OptionsFromEnvironment() {
  return OptionsFrom([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace spmd
