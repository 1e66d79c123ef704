// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/lines.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace spmd::ir {
namespace {

absl::string_view WithoutComment(absl::string_view line) {
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      quoted = !quoted;
    } else if (quoted) {
      if (line[i] == '\\') ++i;
    } else if (line[i] == '#' || absl::StartsWith(line.substr(i), "//")) {
      return line.substr(0, i);
    }
  }
  return line;
}

}  // namespace

std::vector<Line> SplitLines(absl::string_view text) {
  std::vector<Line> lines;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(WithoutComment(line));
    if (!line.empty()) lines.push_back({number, line});
  }
  return lines;
}

absl::Status AtLine(int number, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("line ", number, ": ", status.message()));
}

}  // namespace spmd::ir
