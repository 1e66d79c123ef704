// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/base_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "csrc/partition/memory_profile.h"
#include "csrc/partition/passes.h"
#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/program/uses.h"

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

class MovingEarly {
 public:
  MovingEarly(const Program& program, const std::vector<int64_t>& bytes)
      : program_(program),
        bytes_(bytes),
        facts_(program),
        uses_(program),
        lives_(LivesOf(program)) {}

  // Puts what goes early behind the use of its operand before it, or behind the maker if there is
  // none, so that the operand is given up there.
  Places Run() const {
    const int end = static_cast<int>(program_.instructions.size());
    std::vector<int> place_of(end);  // by instruction
    Places places(end);
    for (int i = 0; i < end; ++i) {
      place_of[i] = i;
      const Instruction& instruction = program_.instructions[i];
      if (GoesEarly(instruction, bytes_) || BecomesSmaller(instruction)) {
        const int before = UseBefore(instruction.operands[0], i);
        if (before >= 0) place_of[i] = place_of[before];
      }
      places[place_of[i]].push_back(i);
    }
    return places;
  }

 private:
  // An element-wise call of one operand whose result is only made smaller.
  bool BecomesSmaller(const Instruction& call) const {
    if (call.code != OpCode::kCall || call.operands.size() != 1 || call.results.size() != 1 ||
        call.operands[0] == kNoValue || MayFailOnValues(program_, call)) {
      return false;
    }
    const absl::Span<const int> users = uses_.Of(call.results[0]);
    if (users.size() != 1 || facts_.is_output(call.results[0])) return false;
    const Instruction& user = program_.instructions[users[0]];
    return GoesEarly(user, bytes_) && bytes_[user.results[0]] < bytes_[call.operands[0]];
  }

  // The instruction that uses or makes `v` before instruction i, its last user; -1 if there is none
  // or the value is kept in any case.
  int UseBefore(ValueId v, int i) const {
    if (lives_[v].last != i) return -1;
    const absl::Span<const int> uses = uses_.Of(v);
    return uses.size() > 1 ? uses[uses.size() - 2] : facts_.maker(v);
  }

  const Program& program_;
  const std::vector<int64_t>& bytes_;
  const program::DefUse facts_;
  const program::Uses uses_;
  const std::vector<Life> lives_;
};

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
  PutAt(MovingEarly(program, bytes).Run(), program);
  PutAt(PuttingOff(program, bytes).Run(), program);
}

}  // namespace spmd::partition
