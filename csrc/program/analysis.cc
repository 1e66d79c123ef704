// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/analysis.h"

#include <algorithm>
#include <utility>

#include "csrc/program/def_use.h"
#include "csrc/program/terms.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

Instruction FreeOf(const std::vector<ValueId>& values) {
  Instruction instruction;
  instruction.code = OpCode::kFree;
  instruction.operands.assign(values.begin(), values.end());
  return instruction;
}

// Tracks the live bytes while a program is walked.
class Tracker {
 public:
  explicit Tracker(const Program& program)
      : bytes_(HeldBytes(program)), alive_(program.values.size(), false) {}

  int64_t bytes(ValueId id) const { return bytes_[id]; }
  int64_t total() const { return total_; }

  void Add(ValueId id) {
    if (alive_[id]) return;
    alive_[id] = true;
    total_ += bytes_[id];
  }

  void Drop(ValueId id) {
    if (!alive_[id]) return;
    alive_[id] = false;
    total_ -= bytes_[id];
  }

  void Run(const Instruction& instruction) {
    if (instruction.code == OpCode::kFree) {
      for (ValueId id : instruction.operands) Drop(id);
      return;
    }
    // Result 0 takes the memory of the operand that it updates.
    if (instruction.updates >= 0) Drop(instruction.operands[instruction.updates]);
    for (ValueId id : instruction.results) Add(id);
  }

  std::vector<LiveValue> Live() const {
    std::vector<LiveValue> live;
    for (size_t id = 0; id < alive_.size(); ++id) {
      if (alive_[id]) live.push_back({static_cast<ValueId>(id), bytes_[id]});
    }
    std::stable_sort(live.begin(), live.end(),
                     [](const LiveValue& a, const LiveValue& b) { return a.bytes > b.bytes; });
    return live;
  }

 private:
  std::vector<int64_t> bytes_;
  std::vector<bool> alive_;
  int64_t total_ = 0;
};

}  // namespace

std::vector<int64_t> HeldBytes(const Program& program) {
  std::vector<int64_t> bytes(program.values.size());
  for (size_t id = 0; id < bytes.size(); ++id) {
    const Value& value = program.values[id];
    const int64_t widening =
        ByteSize(HeldType(value.type.dtype, value.sharding)) / ByteSize(value.type.dtype);
    bytes[id] = program.TileBytes(static_cast<ValueId>(id)) * widening;
  }
  return bytes;
}

void InsertFrees(Program& program) {
  std::vector<Instruction> old = std::move(program.instructions);
  program.instructions.clear();
  for (Instruction& instruction : old) {
    if (instruction.code != OpCode::kFree) program.instructions.push_back(std::move(instruction));
  }
  const DefUse facts(program);
  // The instruction after which a value is dead: its last user, or its maker if nothing reads it;
  // -1 for an input that nothing reads.
  const auto last = [&](ValueId id) { return std::max(facts.maker(id), facts.last_user(id)); };
  // Entry i: the values that are dead after instruction i - 1.
  std::vector<std::vector<ValueId>> dead_after(program.instructions.size() + 1);
  for (ValueId id = 0; id < static_cast<ValueId>(program.values.size()); ++id) {
    if (!facts.outlives(id)) dead_after[last(id) + 1].push_back(id);
  }
  std::vector<Instruction> with_frees;
  // Values that no statement defines are in `values` only and are not freed.
  std::vector<ValueId> unused_inputs;
  for (const Input& input : program.inputs) {
    const bool unused = !facts.outlives(input.value) && last(input.value) == -1;
    if (unused) unused_inputs.push_back(input.value);
  }
  if (!unused_inputs.empty()) with_frees.push_back(FreeOf(unused_inputs));
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    with_frees.push_back(std::move(program.instructions[i]));
    if (!dead_after[i + 1].empty()) with_frees.push_back(FreeOf(dead_after[i + 1]));
  }
  program.instructions = std::move(with_frees);
}

MemoryReport PeakMemory(const Program& program) {
  Tracker tracker(program);
  MemoryReport report;
  for (const Input& input : program.inputs) tracker.Add(input.value);
  report.input_bytes = tracker.total();
  report.peak_bytes = tracker.total();
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    tracker.Run(program.instructions[i]);
    if (tracker.total() <= report.peak_bytes) continue;
    report.peak_bytes = tracker.total();
    report.instruction = static_cast<int>(i);
  }
  // A second walk lists what is live at the peak; listing it at each new maximum would be
  // quadratic.
  Tracker again(program);
  for (const Input& input : program.inputs) again.Add(input.value);
  for (int i = 0; i <= report.instruction; ++i) again.Run(program.instructions[i]);
  report.live = again.Live();
  std::vector<bool> counted(program.values.size(), false);
  for (const Output& output : program.outputs) {
    if (!counted[output.value]) report.output_bytes += tracker.bytes(output.value);
    counted[output.value] = true;
  }
  return report;
}

}  // namespace spmd::program
