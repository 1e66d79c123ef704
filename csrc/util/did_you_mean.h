// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace spmd {

// The candidate nearest to `name` by edit distance (insert, drop, replace, swap neighbours; case is
// ignored), if it is near enough to be a likely typo: at most one edit per three letters, or one in
// all. Ties go to the candidate with the longest common prefix, then to the first.
std::optional<std::string> DidYouMean(absl::string_view name,
                                      absl::Span<const std::string> candidates);

}  // namespace spmd
