// SPDX-License-Identifier: Apache-2.0
// Rules that users write: einsum text and what text does not say, as data.
//
//   {.op = "mylib::norm", .text = "b [d] -> b"}                         d must be whole
//   {.op = "mylib::best", .text = "b k -> b", .kinds = {{"k", "max"}}}  k may be cut: maxima
//   combine
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
  // How results that lack a factor combine when it is cut: "sum" (the default), "prod", "max", …
  std::vector<std::pair<std::string, std::string>> kinds;
  std::vector<int> each;     // operands of which any one may be a term of a sum
  std::vector<int> jointly;  // operands that may be terms of a sum all at once
  // Attributes of the call on tiles that differ from the global call's, in the text of programs:
  // {"size", "[size(r0,0), 4]"}.
  std::vector<std::pair<std::string, std::string>> local;
};

// Errors: InvalidArgument that begins with "register_rule" and names what is malformed.
absl::StatusOr<Rule> FromUser(const UserRule& user);

}  // namespace spmd::rules
