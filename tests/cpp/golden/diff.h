// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace spmd {

// The lines of both texts, those only in `expected` after "- ", those only in `actual` after "+ ".
std::string LineDiff(const std::string& expected, const std::string& actual);

}  // namespace spmd
