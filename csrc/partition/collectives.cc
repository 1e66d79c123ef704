// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "csrc/partition/passes.h"

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

// Issues collectives as late and as few as the program allows: everything that does not wait for
// one runs first; what waits (a norm's root, the optimizer behind the gradients) is put off; when
// nothing else is left, all that is held is issued, like with like in one instruction. A group that
// reaches the cap is issued at once, so that it does not hold its operands for longer than it pays.
class Scheduler {
 public:
  Scheduler(Program& program, int64_t cap) : program_(program), cap_(cap) {}

  std::vector<Instruction> Run(std::vector<Instruction> todo) {
    unavailable_.assign(program_.values.size(), false);
    while (true) {
      std::vector<Instruction> put_off;
      for (Instruction& i : todo) Take(std::move(i), put_off);
      if (put_off.empty() && groups_.empty()) return std::move(out_);
      for (Group& group : groups_) out_.push_back(std::move(group.merged));
      groups_.clear();
      std::fill(unavailable_.begin(), unavailable_.end(), false);
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
  std::vector<bool> unavailable_;  // by value: its collective is held, or its maker put off
  std::vector<Group> groups_;
  std::vector<Instruction> out_;
};

}  // namespace

void MergeCollectives(Program& program, int64_t cap_bytes) {
  program.instructions = Scheduler(program, cap_bytes).Run(std::move(program.instructions));
}

}  // namespace spmd::partition
