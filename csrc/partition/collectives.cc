// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "csrc/partition/passes.h"

namespace spmd::partition {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

bool Mergeable(OpCode code) {
  return code == OpCode::kAllReduce || code == OpCode::kReduceScatter;
}

int64_t ResultBytes(const Program& program, const Instruction& instruction) {
  int64_t bytes = 0;
  for (ValueId v : instruction.results) bytes += program.TileBytes(v);
  return bytes;
}

// Collectives held back until a result is needed. All of one group are alike.
class Pending {
 public:
  Pending(Program& program, int64_t cap) : program_(program), cap_(cap) {}

  void Hold(Instruction instruction) {
    const int64_t bytes = ResultBytes(program_, instruction);
    for (Group& group : groups_) {
      if (!Alike(group.merged, instruction) || group.bytes + bytes > cap_) continue;
      Append(group.merged, instruction);
      group.bytes += bytes;
      return;
    }
    groups_.push_back({std::move(instruction), bytes});
  }

  // Emits the groups that define an operand of `user`.
  void FlushFor(const Instruction& user, std::vector<Instruction>& out) {
    for (size_t g = 0; g < groups_.size();) {
      if (Defines(groups_[g].merged, user)) {
        // A held collective may itself wait for another one.
        Instruction merged = std::move(groups_[g].merged);
        groups_.erase(groups_.begin() + g);
        FlushFor(merged, out);
        out.push_back(std::move(merged));
        g = 0;
      } else {
        ++g;
      }
    }
  }

  void FlushAll(std::vector<Instruction>& out) {
    while (!groups_.empty()) {
      Instruction merged = std::move(groups_.front().merged);
      groups_.erase(groups_.begin());
      FlushFor(merged, out);
      out.push_back(std::move(merged));
    }
  }

 private:
  struct Group {
    Instruction merged;
    int64_t bytes;
  };

  bool Alike(const Instruction& a, const Instruction& b) const {
    const program::Value& x = program_.values[a.operands[0]];
    const program::Value& y = program_.values[b.operands[0]];
    return a.code == b.code && a.axes == b.axes && a.dim == b.dim && x.grid == y.grid &&
           x.sharding.reduce_kind == y.sharding.reduce_kind && !Defines(a, b);
  }

  static bool Defines(const Instruction& producer, const Instruction& user) {
    for (ValueId v : producer.results) {
      for (ValueId u : user.operands) {
        if (u == v) return true;
      }
    }
    return false;
  }

  static void Append(Instruction& merged, const Instruction& more) {
    merged.operands.insert(merged.operands.end(), more.operands.begin(), more.operands.end());
    merged.results.insert(merged.results.end(), more.results.begin(), more.results.end());
  }

  Program& program_;
  int64_t cap_;
  std::vector<Group> groups_;
};

// Every mergeable collective directly behind what defines its operand: reduced values are wanted at
// different places, but a group can only take what is there when its first result is wanted.
void Hoist(Program& program) {
  std::vector<std::vector<Instruction>> behind(program.values.size());
  std::vector<bool> computed(program.values.size(), false);
  for (const Instruction& i : program.instructions) {
    for (ValueId v : i.results) computed[v] = true;
  }
  std::vector<Instruction> rest, out;
  for (Instruction& i : program.instructions) {
    if (Mergeable(i.code) && computed[i.operands[0]]) {
      behind[i.operands[0]].push_back(std::move(i));
    } else {
      rest.push_back(std::move(i));
    }
  }
  std::vector<Instruction> stack;
  for (Instruction& i : rest) {
    stack.push_back(std::move(i));
    while (!stack.empty()) {
      Instruction next = std::move(stack.back());
      stack.pop_back();
      for (auto v = next.results.rbegin(); v != next.results.rend(); ++v) {
        for (auto m = behind[*v].rbegin(); m != behind[*v].rend(); ++m) {
          stack.push_back(std::move(*m));
        }
      }
      out.push_back(std::move(next));
    }
  }
  program.instructions = std::move(out);
}

}  // namespace

void MergeCollectives(Program& program, int64_t cap_bytes) {
  Hoist(program);
  Pending pending(program, cap_bytes);
  std::vector<Instruction> out;
  for (Instruction& instruction : program.instructions) {
    if (Mergeable(instruction.code)) {
      // One that needs the result of a held one goes behind it; groups are kept free of such chains.
      pending.FlushFor(instruction, out);
      pending.Hold(std::move(instruction));
      continue;
    }
    pending.FlushFor(instruction, out);
    out.push_back(std::move(instruction));
  }
  pending.FlushAll(out);
  program.instructions = std::move(out);
}

}  // namespace spmd::partition
