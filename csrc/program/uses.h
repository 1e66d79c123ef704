// SPDX-License-Identifier: Apache-2.0
// Which instructions use each value.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/program/program.h"

namespace spmd::program {

// Thread safety: immutable.
class Uses {
 public:
  explicit Uses(const Program& program) : begin_(program.values.size() + 1, 0) {
    ForEach(program, [&](ValueId v, int) { ++begin_[v + 1]; });
    for (size_t v = 1; v < begin_.size(); ++v) begin_[v] += begin_[v - 1];
    users_.resize(begin_.back());
    std::vector<int> next(begin_.begin(), begin_.end());
    ForEach(program, [&](ValueId v, int user) { users_[next[v]++] = user; });
  }

  // The instructions that use the value, ascending; an instruction stands there once for each
  // operand.
  absl::Span<const int> Of(ValueId v) const {
    return absl::MakeSpan(users_).subspan(begin_[v], begin_[v + 1] - begin_[v]);
  }

 private:
  template <typename Visit>
  static void ForEach(const Program& program, Visit visit) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      for (ValueId v : program.instructions[i].operands) {
        if (v != kNoValue) visit(v, static_cast<int>(i));
      }
    }
  }

  std::vector<int> begin_;  // by value: where its users begin
  std::vector<int> users_;
};

}  // namespace spmd::program
