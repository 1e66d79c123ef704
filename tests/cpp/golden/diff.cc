// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/golden/diff.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace spmd {
namespace {

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace

std::string LineDiff(const std::string& expected, const std::string& actual) {
  const std::vector<std::string> a = LinesOf(expected), b = LinesOf(actual);
  // common[i][j]: the longest common subsequence of a from i on and b from j on.
  std::vector<std::vector<int>> common(a.size() + 1, std::vector<int>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::string out;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      absl::StrAppend(&out, "  ", a[i], "\n");
      ++i, ++j;
    } else if (i < a.size() && (j == b.size() || common[i + 1][j] >= common[i][j + 1])) {
      absl::StrAppend(&out, "- ", a[i++], "\n");
    } else {
      absl::StrAppend(&out, "+ ", b[j++], "\n");
    }
  }
  return out;
}

}  // namespace spmd
