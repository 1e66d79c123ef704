// SPDX-License-Identifier: Apache-2.0
// The text of a graph or a program as statements, one per line.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace spmd::ir {

struct Line {
  int number = 0;          // from 1
  absl::string_view text;  // without comment and surrounding blanks; never empty
};

// The lines of `text` that are not blank. '#' and '//' outside quotes start a comment. The views
// point into `text`.
std::vector<Line> SplitLines(absl::string_view text);

// `status` with "line <n>: " in front; OK is returned as it is.
absl::Status AtLine(int number, const absl::Status& status);

}  // namespace spmd::ir
