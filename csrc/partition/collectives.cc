// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <vector>

#include "csrc/partition/passes.h"
#include "csrc/program/def_use.h"

namespace spmd::partition {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

bool Mergeable(OpCode code) { return code == OpCode::kAllReduce || code == OpCode::kReduceScatter; }

int64_t ResultBytes(const Program& program, const Instruction& instruction) {
  int64_t bytes = 0;
  for (ValueId v : instruction.results) bytes += program.TileBytes(v);
  return bytes;
}

// Issues collectives as late as the program allows, and as few. Everything that does not wait for a
// collective runs first; what waits (a norm's root, the optimizer behind the gradients) is put off.
// When nothing else is left, the group for which the first of these instructions waits is issued,
// collectives of one kind in one instruction, and so on. A group that reaches the cap is issued at
// once, so that it does not hold its operands longer than is worth it.
class Scheduler {
 public:
  Scheduler(Program& program, int64_t cap) : program_(program), cap_(cap) {}

  std::vector<Instruction> Run(std::vector<Instruction> todo) {
    unavailable_.assign(program_.values.size(), false);
    while (true) {
      std::vector<Instruction> put_off;
      for (Instruction& i : todo) Take(std::move(i), put_off);
      if (put_off.empty()) {
        for (Group& group : groups_) out_.push_back(std::move(group.merged));
        return std::move(out_);
      }
      IssueFor(put_off.front());
      for (const Instruction& i : put_off) {
        for (ValueId v : i.results) unavailable_[v] = false;
      }
      todo = std::move(put_off);
    }
  }

 private:
  struct Group {
    Instruction merged;
    int64_t bytes;
  };

  void Take(Instruction instruction, std::vector<Instruction>& put_off) {
    bool waits = false;
    for (ValueId v : instruction.operands) {
      waits = waits || (v != program::kNoValue && unavailable_[v]);
    }
    if (waits || Mergeable(instruction.code)) {
      for (ValueId v : instruction.results) unavailable_[v] = true;
    }
    if (waits) {
      put_off.push_back(std::move(instruction));
    } else if (Mergeable(instruction.code)) {
      Hold(std::move(instruction));
    } else {
      out_.push_back(std::move(instruction));
    }
  }

  void Hold(Instruction instruction) {
    const int64_t bytes = ResultBytes(program_, instruction);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!Alike(groups_[g].merged, instruction)) continue;
      if (groups_[g].bytes + bytes <= cap_) {
        Append(groups_[g].merged, instruction);
        groups_[g].bytes += bytes;
        return;
      }
      Issue(g);
      break;
    }
    groups_.push_back({std::move(instruction), bytes});
  }

  // Issues the groups with a result that `waiting` reads. It is the first that was put off, so it
  // waits for nothing else.
  void IssueFor(const Instruction& waiting) {
    for (size_t g = groups_.size(); g-- > 0;) {
      const auto& made = groups_[g].merged.results;
      const bool read = std::any_of(made.begin(), made.end(), [&](ValueId v) {
        return std::find(waiting.operands.begin(), waiting.operands.end(), v) !=
               waiting.operands.end();
      });
      if (read) Issue(g);
    }
  }

  void Issue(size_t g) {
    for (ValueId v : groups_[g].merged.results) unavailable_[v] = false;
    out_.push_back(std::move(groups_[g].merged));
    groups_.erase(groups_.begin() + g);
  }

  bool Alike(const Instruction& a, const Instruction& b) const {
    const program::Value& x = program_.values[a.operands[0]];
    const program::Value& y = program_.values[b.operands[0]];
    return a.code == b.code && a.axes == b.axes && a.dim == b.dim && x.grid == y.grid &&
           x.sharding.reduce_kind == y.sharding.reduce_kind;
  }

  static void Append(Instruction& merged, const Instruction& more) {
    merged.operands.insert(merged.operands.end(), more.operands.begin(), more.operands.end());
    merged.results.insert(merged.results.end(), more.results.begin(), more.results.end());
  }

  Program& program_;
  int64_t cap_;
  std::vector<bool> unavailable_;  // by value: its collective is held, or its producer put off
  std::vector<Group> groups_;
  std::vector<Instruction> out_;
};

}  // namespace

namespace {

// Sharded biases and norms are gathered together, before anything else: they are so small that
// holding them costs nothing.
constexpr int64_t kSmallInput = 64 << 10;

void GatherSmallInputsAtOnce(Program& program) {
  const program::DefUse facts(program);
  std::vector<Instruction> gathers, others;
  for (Instruction& i : program.instructions) {
    const bool early = i.code == OpCode::kAllGather && i.operands.size() == 1 &&
                       facts.input(i.operands[0]) >= 0 && ResultBytes(program, i) <= kSmallInput;
    if (!early) {
      others.push_back(std::move(i));
      continue;
    }
    const auto alike = std::find_if(gathers.begin(), gathers.end(), [&](const Instruction& g) {
      return g.axes == i.axes && g.dim == i.dim &&
             program.values[g.operands[0]].grid == program.values[i.operands[0]].grid;
    });
    if (alike == gathers.end()) {
      gathers.push_back(std::move(i));
    } else {
      alike->operands.push_back(i.operands[0]);
      alike->results.push_back(i.results[0]);
    }
  }
  program.instructions = std::move(gathers);
  std::move(others.begin(), others.end(), std::back_inserter(program.instructions));
}

// Moves calls to the first use of their results, unless more bytes of operands would be held
// meanwhile than the results take. Decayed weights and roots of moments, which an optimizer
// computes for all parameters before it updates the first, then exist for one parameter at a time.
// Only calls that cannot fail are moved, so that they may overwrite an input in the end.
void PutOffWhatIsNotUsedYet(Program& program) {
  const size_t n = program.instructions.size();
  const program::DefUse facts(program);
  // The first and the last use of each value, as far as they are decided, from the end backwards.
  std::vector<size_t> first_use(program.values.size(), n), last_use(program.values.size(), 0);
  const auto place_for = [&](size_t i) {
    const Instruction& call = program.instructions[i];
    if (call.code != OpCode::kCall || MayFailOnValues(program, call)) return i;
    size_t place = n;
    int64_t released = 0, held = 0;
    for (ValueId v : call.results) {
      place = std::min(place, first_use[v]);
      released += program.TileBytes(v);
    }
    if (place == n) return i;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const ValueId v = call.operands[k];
      const bool again = std::find(call.operands.begin(), call.operands.begin() + k, v) !=
                         call.operands.begin() + k;
      if (v == program::kNoValue || again || facts.outlives(v) || last_use[v] >= place) continue;
      held += program.TileBytes(v);
    }
    return held <= released ? place : i;
  };
  std::vector<std::vector<size_t>> at(n);  // what comes to the place of instruction i, last first
  for (size_t i = n; i-- > 0;) {
    const size_t place = place_for(i);
    at[place].push_back(i);
    for (ValueId v : program.instructions[i].operands) {
      if (v == program::kNoValue) continue;
      first_use[v] = std::min(first_use[v], place);
      last_use[v] = std::max(last_use[v], place);
    }
  }
  std::vector<Instruction> ordered;
  ordered.reserve(n);
  for (const std::vector<size_t>& here : at) {
    for (auto i = here.rbegin(); i != here.rend(); ++i) {
      ordered.push_back(std::move(program.instructions[*i]));
    }
  }
  program.instructions = std::move(ordered);
}

}  // namespace

void MergeCollectives(Program& program, int64_t cap_bytes) {
  GatherSmallInputsAtOnce(program);
  program.instructions = Scheduler(program, cap_bytes).Run(std::move(program.instructions));
  PutOffWhatIsNotUsedYet(program);
}

}  // namespace spmd::partition
