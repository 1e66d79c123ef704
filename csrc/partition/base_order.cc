// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/base_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/partition/passes.h"
#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"

namespace spmd::partition {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

bool Grows(const Instruction& move, const std::vector<int64_t>& bytes) {
  return bytes[move.results[0]] > bytes[move.operands[0]];
}

// By place: the instructions that come there, in order. Place p is where instruction p was.
using Places = std::vector<std::vector<int>>;

void PutAt(const Places& places, Program& program) {
  std::vector<Instruction> ordered;
  ordered.reserve(program.instructions.size());
  for (const std::vector<int>& here : places) {
    for (const int i : here) ordered.push_back(std::move(program.instructions[i]));
  }
  program.instructions = std::move(ordered);
}

// Reductions, and moves that make their operand smaller.
bool GoesEarly(const Instruction& instruction, const std::vector<int64_t>& bytes) {
  if (!program::IsMove(instruction.code) || Grows(instruction, bytes)) return false;
  return instruction.code == OpCode::kAllReduce || instruction.code == OpCode::kReduceScatter ||
         bytes[instruction.results[0]] < bytes[instruction.operands[0]];
}

void MoveEarly(Program& program, const std::vector<int64_t>& bytes) {
  const program::DefUse facts(program);
  std::vector<int> place_of(program.values.size(), -1);  // by value: where it is made
  Places places(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    int place = static_cast<int>(i);
    if (GoesEarly(instruction, bytes)) {
      const ValueId v = instruction.operands[0];
      if (facts.uses(v) == 1 && place_of[v] >= 0) place = place_of[v];
    }
    places[place].push_back(static_cast<int>(i));
    for (ValueId v : instruction.results) place_of[v] = place;
  }
  PutAt(places, program);
}

// Decides, from the end backwards, where each instruction goes.
class PuttingOff {
 public:
  PuttingOff(const Program& program, const std::vector<int64_t>& bytes)
      : program_(program),
        bytes_(bytes),
        end_(static_cast<int>(program.instructions.size())),
        facts_(program),
        first_use_(program.values.size(), end_),
        last_use_(program.values.size(), 0),
        counted_for_(program.values.size(), -1) {}

  Places Run() {
    Places places(end_);
    for (int i = end_; i-- > 0;) {
      const int place = PlaceOf(i);
      places[place].push_back(i);
      for (ValueId v : program_.instructions[i].operands) {
        if (v == kNoValue) continue;
        first_use_[v] = std::min(first_use_[v], place);
        last_use_[v] = std::max(last_use_[v], place);
      }
    }
    for (std::vector<int>& here : places) std::reverse(here.begin(), here.end());
    return places;
  }

 private:
  bool MayBePutOff(const Instruction& instruction) const {
    if (instruction.code == OpCode::kCall) return !MayFailOnValues(program_, instruction);
    return Grows(instruction, bytes_);
  }

  int PlaceOf(int i) {
    const Instruction& instruction = program_.instructions[i];
    if (!MayBePutOff(instruction)) return i;
    int place = end_;
    int64_t released = 0, held = 0;
    for (ValueId v : instruction.results) {
      place = std::min(place, first_use_[v]);
      released += bytes_[v];
    }
    if (place == end_) return i;
    for (ValueId v : instruction.operands) {
      if (v == kNoValue || counted_for_[v] == i || facts_.outlives(v)) continue;
      if (last_use_[v] >= place) continue;
      counted_for_[v] = i;
      held += bytes_[v];
    }
    return held <= released ? place : i;
  }

  const Program& program_;
  const std::vector<int64_t>& bytes_;
  const int end_;
  const program::DefUse facts_;
  // By value: its first and its last use, as far as they are decided.
  std::vector<int> first_use_, last_use_;
  std::vector<int> counted_for_;  // by value: the last instruction that counted it
};

}  // namespace

void BaseOrder(Program& program) {
  const std::vector<int64_t> bytes = program::HeldBytes(program);
  MoveEarly(program, bytes);
  PutAt(PuttingOff(program, bytes).Run(), program);
}

}  // namespace spmd::partition
