// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/order.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/partition/memory_profile.h"
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

// A merged collective starts once for this many starts' worth of sending.
constexpr double kStartsPerCollective = 64;
// A merged collective moves at least this share of a device's memory, where there is so much to
// spare, and the memory of a device of which it is not known.
constexpr int64_t kShareOfMemory = 256;
constexpr int64_t kUsualMemory = int64_t{16} << 30;
// Held are operands and results, of groups of several kinds.
constexpr int64_t kCapsOfSlack = 4;
// Of a device's memory, what merging may take where there is none to spare.
constexpr int64_t kLeastShare = 1024;
// How far a wait looks for more to merge: entries of the list of collectives, and instructions that
// make the operand of one of them. They bound the work of each wait by a constant.
constexpr int kMostEntries = 16;
constexpr size_t kMostMakers = 16;

bool IsReduction(const Instruction& i) {
  return i.code == OpCode::kAllReduce || i.code == OpCode::kReduceScatter;
}
bool IsGather(const Instruction& i) { return i.code == OpCode::kAllGather; }

constexpr int64_t kNoBound = int64_t{1} << 62;

class Orderer {
 public:
  Orderer(Program& program, const OrderOptions& options)
      : program_(program),
        options_(options),
        facts_(program),
        uses_(program),
        bytes_(program::HeldBytes(program)),
        base_(program),
        todo_(std::move(program.instructions)) {
    const size_t n = todo_.size();
    pending_.resize(n, 0);
    state_.resize(n, State::kWaiting);
    charge_.resize(n, 0);
    early_.resize(n, 0);
    kind_of_.resize(n, -1);
    for (size_t i = 0; i < n; ++i) {
      if (IsReduction(todo_[i]) || IsGather(todo_[i])) AddToKind(static_cast<int>(i));
    }
    for (ValueId v = 0; v < static_cast<ValueId>(program.values.size()); ++v) {
      if (facts_.maker(v) < 0) continue;
      for (const int u : uses_.Of(v)) ++pending_[u];
    }
    program_.instructions.reserve(n);
  }

  OrderWork Run() {
    for (front_ = 0; front_ < static_cast<int>(todo_.size()); ++front_) {
      ++work_.steps;
      if (state_[front_] == State::kWaiting) {
        if (pending_[front_] > 0) IssueFor(front_);
        Take(front_);
      } else if (state_[front_] == State::kDone) {
        Release(front_, charge_[front_]);
        early_bytes_ -= std::exchange(early_[front_], 0);
      }
      if (kind_of_[front_] >= 0 && state_[front_] == State::kDone) GatherEarly(kind_of_[front_]);
    }
    for (size_t k = 0; k < kinds_.size(); ++k) Issue(static_cast<int>(k));
    return work_;
  }

 private:
  enum class State : uint8_t { kWaiting, kHeld, kDone };
  // Collectives that can be merged. `members` are all of them, in the base order.
  struct Kind {
    OpCode code;
    std::vector<int> members;
    size_t next = 0;        // the first that may still be waiting
    std::vector<int> held;  // those that wait to be issued together
    int64_t held_bytes = 0;
    int early_until = 0;  // where the first of those is needed that were gathered early
  };

  void AddToKind(int i) {
    const Instruction& instruction = todo_[i];
    const program::Value& from = program_.values[instruction.operands[0]];
    const auto key = std::make_tuple(instruction.code, instruction.axes, instruction.dim, from.grid,
                                     from.sharding.reduce_kind);
    const auto [it, is_new] = kinds_by_key_.try_emplace(key, static_cast<int>(kinds_.size()));
    if (is_new) kinds_.push_back({.code = instruction.code});
    kind_of_[i] = it->second;
    kinds_[it->second].members.push_back(i);
  }

  int64_t OperandBytes(int i) const { return Bytes(todo_[i].operands); }
  int64_t ResultBytes(int i) const { return Bytes(todo_[i].results); }
  template <typename Values>
  int64_t Bytes(const Values& values) const {
    int64_t bytes = 0;
    for (ValueId v : values) bytes += bytes_[v];
    return bytes;
  }
  // What the collective moves.
  int64_t MovedBytes(int i) const { return std::max(OperandBytes(i), ResultBytes(i)); }

  void Charge(int i, int64_t bytes) {
    charge_[i] += bytes;
    ahead_bytes_ += bytes;
  }
  void Release(int i, int64_t bytes) { Charge(i, -bytes); }
  bool Fits(int64_t bytes) const {
    return ahead_bytes_ - early_bytes_ + bytes <= options_.slack_bytes;
  }

  // A gather for the caller, such as that of a parameter, which an optimizer updates in parts.
  bool IsWantedLast(int i) const {
    return IsGather(todo_[i]) && uses_.Of(todo_[i].results[0]).empty();
  }

  // Runs instruction i, or holds it. Requires: its operands are made.
  void Take(int i) {
    if (IsReduction(todo_[i]) || IsWantedLast(i)) {
      Hold(i);
    } else if (IsGather(todo_[i])) {
      Gather(i);
    } else {
      Emit(i, std::move(todo_[i]));
    }
  }

  void Emit(int i, Instruction instruction) {
    Finish(i, instruction.results);
    program_.instructions.push_back(std::move(instruction));
  }

  // The instruction's results are made from now on.
  template <typename Values>
  void Finish(int i, const Values& results) {
    if (i > front_) Charge(i, Bytes(results));
    state_[i] = State::kDone;
    for (ValueId v : results) {
      for (const int u : uses_.Of(v)) {
        --pending_[u];
        ++work_.steps;
      }
    }
  }

  // Emits collectives of one kind as one instruction.
  void EmitMerged(const std::vector<int>& members) {
    Instruction merged = std::move(todo_[members[0]]);
    Finish(members[0], merged.results);
    for (size_t k = 1; k < members.size(); ++k) {
      const Instruction& more = todo_[members[k]];
      Finish(members[k], more.results);
      merged.operands.insert(merged.operands.end(), more.operands.begin(), more.operands.end());
      merged.results.insert(merged.results.end(), more.results.begin(), more.results.end());
    }
    program_.instructions.push_back(std::move(merged));
  }

  // What is held longer if reduction i waits. In its turn that is the operand, since the base order
  // holds the result until it is needed.
  int64_t HeldBytes(int i) const { return OperandBytes(i) + (i > front_ ? ResultBytes(i) : 0); }

  // Whether the base order leaves room below its peak for reduction i until its result is needed.
  bool HasRoom(int i, int64_t charge) const {
    if (i > front_) return false;
    const absl::Span<const int> uses = uses_.Of(todo_[i].results[0]);
    const int until = uses.empty() ? static_cast<int>(todo_.size()) - 1 : uses[0];
    return base_.Most(front_, until) + ahead_bytes_ + charge <= base_.peak();
  }

  int64_t CapOf(const Kind& kind) const {
    return kind.code == OpCode::kAllGather ? options_.gather_cap_bytes : options_.cap_bytes;
  }

  void Hold(int i) {
    Kind& kind = kinds_[kind_of_[i]];
    const int64_t moved = MovedBytes(i), charge = HeldBytes(i), cap = CapOf(kind);
    if (kind.held_bytes + moved > cap) Issue(kind_of_[i]);
    if (HasRoom(i, charge)) {
      early_bytes_ += early_[i] = charge;
    } else if (!Fits(charge)) {
      Issue(kind_of_[i]);
    }
    state_[i] = State::kHeld;
    kind.held.push_back(i);
    kind.held_bytes += moved;
    Charge(i, charge);
    if (kind.held_bytes >= cap || !Fits(0)) Issue(kind_of_[i]);
  }

  void Issue(int k) {
    Kind& kind = kinds_[k];
    if (kind.held.empty()) return;
    for (const int i : kind.held) {
      early_bytes_ -= std::exchange(early_[i], 0);
      Release(i, charge_[i]);
    }
    EmitMerged(kind.held);
    kind.held.clear();
    kind.held_bytes = 0;
  }

  // Issues the groups whose results instruction i reads.
  void IssueFor(int i) {
    for (ValueId v : todo_[i].operands) {
      ++work_.steps;
      if (v == kNoValue || facts_.maker(v) < 0 || state_[facts_.maker(v)] != State::kHeld) continue;
      const int kind = kind_of_[facts_.maker(v)];
      MakeMore(kind);
      Issue(kind);
    }
  }

  // Calls visit(member) for the next members that wait, until it returns false.
  template <typename Visit>
  void ForNext(int k, Visit visit) {
    Kind& kind = kinds_[k];
    while (kind.next < kind.members.size() && state_[kind.members[kind.next]] != State::kWaiting) {
      ++kind.next;
      ++work_.steps;
    }
    const size_t end = std::min(kind.members.size(), kind.next + kMostEntries);
    for (size_t m = kind.next; m < end; ++m) {
      ++work_.steps;
      const int i = kind.members[m];
      if (state_[i] == State::kWaiting && !visit(i)) return;
    }
  }

  // Holds more reductions of a kind, whose operands can be made at once.
  void MakeMore(int k) {
    bool found = true;
    while (found) {
      found = false;
      ForNext(k, [&](int i) {
        const Kind& kind = kinds_[k];
        if (kind.held_bytes + MovedBytes(i) > options_.cap_bytes) return false;
        std::vector<int> makers;
        int64_t bytes = OperandBytes(i) + ResultBytes(i);
        if (!CollectMakers(i, makers, bytes)) return true;
        for (const int m : makers) Emit(m, std::move(todo_[m]));
        Hold(i);
        found = true;
        return !kind.held.empty();
      });
      if (kinds_[k].held.empty()) return;
    }
  }

  // The instructions that must run before instruction i, in the base order, if none of them waits
  // for a collective, they are few, and what they make fits with `bytes`.
  bool CollectMakers(int i, std::vector<int>& makers, int64_t bytes) {
    std::vector<int> open = {i};
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      if (at != i) makers.push_back(at);
      if (pending_[at] == 0) continue;
      for (ValueId v : todo_[at].operands) {
        ++work_.steps;
        if (v == kNoValue || facts_.maker(v) < 0) continue;
        const int m = facts_.maker(v);
        if (state_[m] == State::kDone) continue;
        if (state_[m] == State::kHeld || IsReduction(todo_[m])) return false;
        if (std::find(makers.begin(), makers.end(), m) != makers.end()) continue;
        if (std::find(open.begin(), open.end(), m) != open.end()) continue;
        bytes += ResultBytes(m);
        if (makers.size() + open.size() >= kMostMakers || !Fits(bytes)) return false;
        open.push_back(m);
      }
    }
    if (!Fits(bytes)) return false;
    std::sort(makers.begin(), makers.end());
    return true;
  }

  // Gathers with the next ones of the kind whose operands are made.
  void Gather(int i) {
    std::vector<int> members = {i};
    int64_t moved = MovedBytes(i), early = 0;
    ForNext(kind_of_[i], [&](int more) {
      if (more == i || pending_[more] > 0 || IsWantedLast(more)) return true;
      const int64_t bytes = MovedBytes(more);
      if (moved + bytes > options_.gather_cap_bytes || !Fits(early + ResultBytes(more)))
        return false;
      moved += bytes;
      early += ResultBytes(more);
      members.push_back(more);
      return true;
    });
    EmitMerged(members);
  }

  // Once a gather is in its turn, the next ones of the kind are sent while its result is worked on,
  // if the base order holds so much less until they are needed.
  void GatherEarly(int k) {
    Kind& kind = kinds_[k];
    if (kind.code != OpCode::kAllGather || front_ < kind.early_until) return;
    std::vector<int> members;
    int64_t moved = 0;
    ForNext(k, [&](int i) {
      if (pending_[i] > 0 || IsWantedLast(i)) return true;
      const int64_t bytes = MovedBytes(i);
      const int64_t room = base_.peak() - base_.Most(front_, i) - ahead_bytes_;
      if (moved + bytes > room) return false;
      if (!members.empty() && moved + bytes > options_.gather_cap_bytes) return false;
      moved += bytes;
      members.push_back(i);
      return true;
    });
    if (members.empty()) return;
    kind.early_until = members[0];
    EmitMerged(members);
    for (const int i : members) early_bytes_ += early_[i] = charge_[i];
  }

  Program& program_;
  const OrderOptions options_;
  const program::DefUse facts_;
  const program::Uses uses_;
  const std::vector<int64_t> bytes_;  // by value
  const MemoryProfile base_;
  std::vector<Instruction> todo_;  // in the base order
  std::vector<int> pending_;       // by instruction: uses of values that are not made yet
  std::vector<State> state_;
  std::vector<int64_t> charge_;  // by instruction: its part of ahead_bytes_
  std::vector<int> kind_of_;
  std::vector<Kind> kinds_;
  absl::flat_hash_map<std::tuple<OpCode, AxisList, int, int, ReduceKind>, int> kinds_by_key_;
  int front_ = 0;  // all before it are done or held
  int64_t ahead_bytes_ = 0;
  // By instruction, and in sum: the part of ahead_bytes_ for which the base order leaves room below
  // its peak.
  std::vector<int64_t> early_;
  int64_t early_bytes_ = 0;
  OrderWork work_;
};

}  // namespace

int64_t MemoryToFill(const machine::Machine& machine) {
  return machine.memory_bytes - machine.memory_bytes / kLeastShare;
}

OrderOptions OptionsFor(const Program& program, const machine::Machine& machine,
                        int64_t cap_bytes) {
  OrderOptions options;
  options.cap_bytes = options.gather_cap_bytes = cap_bytes;
  if (cap_bytes == 0) {
    const double bytes = kStartsPerCollective * machine.latency * machine.link_bandwidth;
    const int64_t memory = machine.memory_bytes > 0 ? machine.memory_bytes : kUsualMemory;
    options.gather_cap_bytes = bytes < kNoBound ? static_cast<int64_t>(bytes) : kNoBound;
    options.cap_bytes = std::max(options.gather_cap_bytes, memory / kShareOfMemory);
  }
  options.slack_bytes = std::min(options.cap_bytes, kNoBound / kCapsOfSlack) * kCapsOfSlack;
  if (machine.memory_bytes > 0) {
    const int64_t spare = machine.memory_bytes - MemoryProfile(program).peak();
    options.slack_bytes =
        std::min(options.slack_bytes, std::max(spare, machine.memory_bytes / kLeastShare));
  }
  return options;
}

OrderWork Order(Program& program, const OrderOptions& options) {
  return Orderer(program, options).Run();
}

}  // namespace spmd::partition
