// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/memory_use.h"

#include <numeric>

#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/program/terms.h"

namespace spmd::program {
namespace {

// By value, what it is held for.
std::vector<HeldFor> Purposes(const Program& program) {
  std::vector<HeldFor> what(program.values.size(), HeldFor::kActivation);
  std::vector<bool> from_backward(program.values.size()), to_outside(program.values.size());
  for (const Instruction& i : program.instructions) {
    for (size_t k = 0; k < i.results.size(); ++k) {
      const bool moved = IsMove(i.code) && from_backward[i.operands[k]];
      from_backward[i.results[k]] = moved || (i.code == OpCode::kCall && i.task != 0);
      if (i.code == OpCode::kAllGather) what[i.results[k]] = HeldFor::kGathered;
    }
  }
  for (const Output& output : program.outputs) to_outside[output.value] = true;
  for (auto i = program.instructions.rbegin(); i != program.instructions.rend(); ++i) {
    for (size_t k = 0; k < i->operands.size(); ++k) {
      if (i->operands[k] == kNoValue || i->code == OpCode::kFree) continue;
      const bool moved = IsMove(i->code) && to_outside[i->results[k]];
      if (moved || (i->code == OpCode::kCall && i->task == 0)) to_outside[i->operands[k]] = true;
    }
  }
  for (size_t v = 0; v < what.size(); ++v) {
    if (from_backward[v] && to_outside[v]) what[v] = HeldFor::kGradient;
  }
  for (const Input& input : program.inputs) what[input.value] = HeldFor::kArgument;
  for (const Output& output : program.outputs) {
    if (output.becomes >= 0) what[output.value] = HeldFor::kArgument;
  }
  // What overwrites an argument is one, too: a parameter between two steps of its update.
  for (const Instruction& i : program.instructions) {
    if (i.updates < 0 || what[i.operands[i.updates]] != HeldFor::kArgument) continue;
    what[i.results[0]] = HeldFor::kArgument;
  }
  return what;
}

}  // namespace

int64_t MemoryUse::peak_bytes() const {
  return std::accumulate(at_peak.begin(), at_peak.end(), int64_t{0});
}

MemoryUse UseOfMemory(const Program& program) {
  const MemoryReport report = PeakMemory(program);
  const std::vector<HeldFor> what = Purposes(program);
  const DefUse facts(program);
  MemoryUse use;
  for (const LiveValue& live : report.live) {
    use.at_peak[static_cast<int>(what[live.value])] += live.bytes;
    use.live.push_back({live.value, what[live.value], live.bytes, facts.maker(live.value)});
  }
  const std::vector<int64_t> bytes = HeldBytes(program);
  MemoryUse::Bytes now = {};
  std::vector<bool> alive(program.values.size());
  const auto set = [&](ValueId v, bool is_alive) {
    if (alive[v] == is_alive) return;
    alive[v] = is_alive;
    now[static_cast<int>(what[v])] += (is_alive ? bytes[v] : -bytes[v]);
  };
  for (const Input& input : program.inputs) set(input.value, true);
  for (const Instruction& i : program.instructions) {
    if (i.code == OpCode::kFree) {
      for (const ValueId v : i.operands) set(v, false);
      continue;
    }
    if (i.updates >= 0) set(i.operands[i.updates], false);
    for (const ValueId v : i.results) set(v, true);
    use.after.push_back(now);
  }
  return use;
}

}  // namespace spmd::program
