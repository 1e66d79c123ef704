// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/memory_profile.h"

#include <algorithm>

#include "csrc/program/analysis.h"

namespace spmd::partition {

using program::Program;
using program::ValueId;

MemoryProfile::MemoryProfile(const Program& program)
    : leaves_(program.instructions.size() + 1), most_(2 * leaves_, 0) {
  const int end = static_cast<int>(program.instructions.size());
  const std::vector<int64_t> bytes = program::HeldBytes(program);
  constexpr int kNever = -1;
  std::vector<int> made(program.values.size(), kNever), last(program.values.size(), kNever);
  for (const program::Input& input : program.inputs) {
    made[input.value] = 0;
    last[input.value] = end;
  }
  for (const program::Output& output : program.outputs) {
    if (output.becomes >= 0) last[program.inputs[output.becomes].value] = 0;
  }
  std::vector<bool> kept(program.values.size(), false);
  for (const program::Output& output : program.outputs) kept[output.value] = true;
  for (int i = 0; i < end; ++i) {
    for (ValueId v : program.instructions[i].operands) {
      if (v != program::kNoValue) last[v] = std::max(last[v], i);
    }
    for (ValueId v : program.instructions[i].results) made[v] = last[v] = i;
  }
  std::vector<int64_t> change(end + 2, 0);
  for (size_t v = 0; v < made.size(); ++v) {
    if (made[v] == kNever) continue;
    change[made[v]] += bytes[v];
    change[(kept[v] ? end : last[v]) + 1] -= bytes[v];
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
