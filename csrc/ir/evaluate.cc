// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/evaluate.h"

#include <utility>
#include <variant>
#include <vector>

namespace spmd {

Attributes Evaluated(const Attributes& attributes, const Expr::Env& env) {
  Attributes plain;
  for (const auto& [name, value] : attributes) {
    if (const auto* e = std::get_if<Expr>(&value)) {
      plain.Set(name, e->Evaluate(env));
    } else if (const auto* list = std::get_if<std::vector<Expr>>(&value)) {
      std::vector<int64_t> numbers;
      for (const Expr& e : *list) numbers.push_back(e.Evaluate(env));
      plain.Set(name, std::move(numbers));
    } else {
      plain.Set(name, value);
    }
  }
  return plain;
}

}  // namespace spmd
