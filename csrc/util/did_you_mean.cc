// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/did_you_mean.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"

namespace spmd {
namespace {

size_t EditDistance(absl::string_view a, absl::string_view b) {
  // Rows i-2, i-1 and i of the table of edit distances between prefixes.
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

std::optional<std::string> DidYouMean(absl::string_view name,
                                      absl::Span<const std::string> candidates) {
  const std::string wanted = absl::AsciiStrToLower(name);
  size_t nearest = std::max<size_t>(1, name.size() / 3) + 1;
  size_t longest = 0;
  std::optional<std::string> best;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(wanted, absl::AsciiStrToLower(candidate));
    // An edit of every letter is no typo: "x" is one edit from "y", but does not suggest it.
    if (distance >= std::max(name.size(), candidate.size())) continue;
    const size_t prefix = CommonPrefix(wanted, absl::AsciiStrToLower(candidate));
    if (distance < nearest || (best.has_value() && distance == nearest && prefix > longest)) {
      nearest = distance;
      longest = prefix;
      best = candidate;
    }
  }
  return best;
}

}  // namespace spmd
