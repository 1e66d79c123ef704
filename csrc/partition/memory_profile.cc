// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/memory_profile.h"

#include <algorithm>

#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"

namespace spmd::partition {

using program::Program;
using program::ValueId;

std::vector<Life> LivesOf(const Program& program) {
  const int end = static_cast<int>(program.instructions.size());
  const program::DefUse facts(program);
  std::vector<bool> given_up(program.inputs.size(), false);
  for (const program::Output& output : program.outputs) {
    if (output.becomes >= 0) given_up[output.becomes] = true;
  }
  std::vector<Life> lives(program.values.size());
  for (ValueId v = 0; v < static_cast<ValueId>(lives.size()); ++v) {
    const int input = facts.input(v);
    if (facts.maker(v) < 0 && input < 0) continue;
    const bool kept = facts.is_output(v) || (input >= 0 && !given_up[input]);
    lives[v].first = std::max(facts.maker(v), 0);
    lives[v].last = kept ? end : std::max(lives[v].first, facts.last_user(v));
  }
  return lives;
}

MemoryProfile::MemoryProfile(const Program& program)
    : leaves_(program.instructions.size() + 1), most_(2 * leaves_, 0) {
  const int end = static_cast<int>(program.instructions.size());
  const std::vector<int64_t> bytes = program::HeldBytes(program);
  const std::vector<Life> lives = LivesOf(program);
  std::vector<int64_t> change(end + 2, 0);
  for (size_t v = 0; v < lives.size(); ++v) {
    if (lives[v].first > lives[v].last) continue;
    change[lives[v].first] += bytes[v];
    change[lives[v].last + 1] -= bytes[v];
  }
  int64_t now = 0;
  for (int i = 0; i <= end; ++i) most_[leaves_ + i] = now += change[i];
  for (size_t k = leaves_; k-- > 1;) most_[k] = std::max(most_[2 * k], most_[2 * k + 1]);
}

int64_t MemoryProfile::Most(int first, int last) const {
  int64_t most = 0;
  for (size_t a = leaves_ + first, b = leaves_ + last + 1; a < b; a /= 2, b /= 2) {
    if (a % 2 == 1) most = std::max(most, most_[a++]);
    if (b % 2 == 1) most = std::max(most, most_[--b]);
  }
  return most;
}

}  // namespace spmd::partition
