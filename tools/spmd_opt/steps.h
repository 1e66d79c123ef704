// SPDX-License-Identifier: Apache-2.0
// The steps of spmd-opt: each takes the text of a graph or of a program and gives text. Steps of
// one run follow each other, so that a pass's result can be looked at: "finish, traffic".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace spmd::opt {

// One line per step, "name  what it does", in the order of the table: first what reads a text, then
// the passes in the order in which they run.
std::string DescribeSteps();

// `text` after the steps, each a name or "name=argument".
// Errors: InvalidArgument for an unknown step, or for text that does not parse, with its line;
// whatever a step gives.
absl::StatusOr<std::string> RunSteps(absl::string_view text, absl::Span<const std::string> steps);

// "a, b=c" as a list.
std::vector<std::string> SplitSteps(absl::string_view list);

}  // namespace spmd::opt
