// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace spmd {

// The candidate nearest to `name` by edit distance (insert, drop, replace, swap neighbours; case is
// ignored), if near enough to be a likely typo: at most one edit per three letters, or one in all.
// Of equals the one with the longest common beginning, then the first.
std::optional<std::string> DidYouMean(absl::string_view name,
                                      absl::Span<const std::string> candidates);

}  // namespace spmd
