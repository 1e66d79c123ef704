// SPDX-License-Identifier: Apache-2.0
// A rule that a user writes: einsum text, and as data what the text does not say.
//
//   {.op = "mylib::norm", .text = "b [d] -> b"}                         d must be whole
//   {.op = "mylib::best", .text = "b k -> b", .kinds = {{"k", "max"}}}  k may be sharded: the
//                                                                       results' maximum is taken
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

struct UserRule {
  std::string op;
  std::string text;
  // How results that lack a factor combine when it is sharded: "sum" (the default), "prod", "max",
  // …
  std::vector<std::pair<std::string, std::string>> kinds;
  std::vector<int> each;     // any one of these operands may be unreduced (sum)
  std::vector<int> jointly;  // operands that may be unreduced (sum) all at once
  // Attributes of the call on tiles that differ from those of the global call, in the text form of
  // programs: {"size", "[size(r0,0), 4]"}.
  std::vector<std::pair<std::string, std::string>> local;
};

// Errors: InvalidArgument that begins with "register_rule" and names the malformed part.
absl::StatusOr<Rule> FromUser(const UserRule& user);

}  // namespace spmd::rules
