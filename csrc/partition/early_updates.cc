// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/early_updates.h"

#include <algorithm>
#include <numeric>
#include <optional>
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

// A value of at most so many bytes is a number that updates may share without being one group.
constexpr int64_t kNumberBytes = 8;
// How many places are looked at for one with room for a group.
constexpr int kMostPlaces = 64;
// How many instructions an update comes behind the collective that makes its gradient, the first
// that makes the program fit.
constexpr int kLags[] = {256, 64, 16, 4, 1};

class Grouping {
 public:
  explicit Grouping(const Program& program)
      : program_(program),
        bytes_(program::HeldBytes(program)),
        facts_(program),
        uses_(program),
        profile_(program),
        end_(static_cast<int>(program.instructions.size())),
        first_(FirstBehindBackward()),
        last_failing_(LastThatMayFail(program)),
        given_up_(program.values.size(), false),
        last_use_(program.values.size(), -1) {
    for (const program::Output& output : program.outputs) {
      if (output.becomes >= 0) given_up_[program.inputs[output.becomes].value] = true;
    }
    if (first_ > 0 && last_failing_ < first_) groups_ = Groups();
  }

  int64_t peak() const { return profile_.peak(); }

  // Whether a collective makes an operand of a group that was placed.
  bool waits() const { return waits_; }

  // By instruction: those behind the backward pass that go behind it, in order, each group as a
  // whole. Empty if all stay. Where a collective makes an operand, a group goes `lag` instructions
  // behind it.
  std::vector<std::vector<int>> Places(int lag) {
    if (groups_.empty()) return {};
    behind_.assign(end_, {});
    for (const std::vector<int>& group : groups_) {
      if (!Place(group, lag)) PutBehind(first_ - 1, group);
    }
    return std::move(behind_);
  }

 private:
  // The instruction behind the last call of a backward pass that does more than single elements; 0
  // if there is none.
  int FirstBehindBackward() const {
    for (int i = end_; i-- > 0;) {
      const Instruction& instruction = program_.instructions[i];
      if (instruction.task != 0 && MayFailOnValues(program_, instruction)) return i + 1;
    }
    return 0;
  }

  // A move for the caller, such as the gather of a parameter that is updated in parts.
  bool IsForCaller(const Instruction& instruction) const {
    return program::IsMove(instruction.code) &&
           std::all_of(instruction.results.begin(), instruction.results.end(),
                       [&](ValueId v) { return uses_.Of(v).empty(); });
  }

  // The groups of the instructions behind the backward pass, each in the order of the program.
  std::vector<std::vector<int>> Groups() const {
    std::vector<int> parent(end_ - first_);
    std::iota(parent.begin(), parent.end(), 0);
    const auto root = [&](int i) {
      for (i -= first_; parent[i] != i; i = parent[i]) parent[i] = parent[parent[i]];
      return i;
    };
    std::vector<int> first_user(program_.values.size(), -1);
    for (int i = first_; i < end_; ++i) {
      if (IsForCaller(program_.instructions[i])) continue;
      for (ValueId v : program_.instructions[i].operands) {
        if (v == kNoValue) continue;
        int with = facts_.maker(v);
        if (with < first_) {  // a gradient, or an input
          if (facts_.input(v) >= 0 || bytes_[v] <= kNumberBytes) continue;
          if (first_user[v] < 0) first_user[v] = i;
          with = first_user[v];
        }
        parent[root(with)] = root(i);
      }
    }
    std::vector<std::vector<int>> by_root(parent.size());
    for (int i = first_; i < end_; ++i) {
      if (!IsForCaller(program_.instructions[i])) by_root[root(i)].push_back(i);
    }
    std::erase_if(by_root, [](const std::vector<int>& group) { return group.empty(); });
    return by_root;
  }

  // What a group takes from outside and leaves, if it runs behind `place`.
  struct Balance {
    int place;
    int sent = -1;         // the last collective of the backward pass that makes an operand
    int64_t given_up = 0;  // bytes of values from outside that nothing else uses
    int64_t left = 0;      // bytes of results that others use
    int64_t most = 0;      // the most that it holds beyond what was there
  };

  // True if `v`, which comes from outside, is given up with its last use in the group. Then `place`
  // is behind all other uses.
  bool IsGivenUp(ValueId v, const std::vector<int>& group, int& place) const {
    if (facts_.is_output(v) || (facts_.input(v) >= 0 && !given_up_[v])) return false;
    int before = place;
    for (const int user : uses_.Of(v)) {
      if (std::binary_search(group.begin(), group.end(), user)) continue;
      if (user >= first_) return false;
      before = std::max(before, user);
    }
    place = before;
    return true;
  }

  Balance BalanceOf(const std::vector<int>& group) {
    Balance balance{.place = std::max(last_failing_, 0)};
    for (const int i : group) {
      for (ValueId v : program_.instructions[i].operands) {
        if (v == kNoValue) continue;
        if (facts_.maker(v) < first_) balance.place = std::max(balance.place, facts_.maker(v));
        if (IsSent(v)) balance.sent = std::max(balance.sent, facts_.maker(v));
        last_use_[v] = i;
      }
    }
    int64_t held = 0;
    std::vector<ValueId> seen;
    for (const int i : group) {
      const Instruction& instruction = program_.instructions[i];
      for (ValueId v : instruction.results) {
        held += bytes_[v];
        const absl::Span<const int> users = uses_.Of(v);
        const bool is_left = facts_.is_output(v) || users.empty() ||
                             std::any_of(users.begin(), users.end(), [&](int user) {
                               return !std::binary_search(group.begin(), group.end(), user);
                             });
        if (is_left) balance.left += bytes_[v];
        if (is_left) last_use_[v] = end_;
      }
      balance.most = std::max(balance.most, held);
      for (ValueId v : instruction.operands) {
        if (v == kNoValue || last_use_[v] != i) continue;
        last_use_[v] = -1;  // once, where it is an operand twice
        const bool is_inner = facts_.maker(v) >= first_;
        if (!is_inner && !IsGivenUp(v, group, balance.place)) continue;
        if (!is_inner) balance.given_up += bytes_[v];
        held -= bytes_[v];
      }
    }
    return balance;
  }

  void PutBehind(int place, const std::vector<int>& group) {
    behind_[place].insert(behind_[place].end(), group.begin(), group.end());
  }

  // Moves the group up, to the first place with room for it, if that is worth it.
  bool Place(const std::vector<int>& group, int lag) {
    const Balance balance = BalanceOf(group);
    if (balance.left >= balance.given_up) return false;
    waits_ = waits_ || balance.sent >= 0;
    const int from = balance.sent < 0 ? balance.place : std::max(balance.place, balance.sent + lag);
    const int last = std::min(first_ - 1, from + kMostPlaces);
    for (int place = from; place < last; ++place) {
      if (profile_.Most(place, place) + balance.most > profile_.peak()) continue;
      PutBehind(place, group);
      return true;
    }
    return false;
  }

  // True if a collective of the backward pass makes `v`.
  bool IsSent(ValueId v) const {
    const int maker = facts_.maker(v);
    return maker >= 0 && maker < first_ && program::Communicates(program_.instructions[maker].code);
  }

  const Program& program_;
  const std::vector<int64_t> bytes_;
  const program::DefUse facts_;
  const program::Uses uses_;
  const MemoryProfile profile_;
  const int end_;
  const int first_;             // behind the backward pass
  const int last_failing_;      // no update comes before it
  std::vector<bool> given_up_;  // by value: an input that an output replaces
  std::vector<int> last_use_;   // by value, within the group that is looked at
  std::vector<std::vector<int>> groups_;
  std::vector<std::vector<int>> behind_;
  bool waits_ = false;
};

// The program in which the instructions `behind` each one follow it.
Program Reordered(const Program& program, const std::vector<std::vector<int>>& behind) {
  std::vector<bool> moves(behind.size(), false);
  for (const std::vector<int>& those : behind) {
    for (const int i : those) moves[i] = true;
  }
  Program moved = program;
  moved.instructions.clear();
  for (size_t i = 0; i < behind.size(); ++i) {
    if (!moves[i]) moved.instructions.push_back(program.instructions[i]);
    for (const int k : behind[i]) moved.instructions.push_back(program.instructions[k]);
  }
  return moved;
}

}  // namespace

bool UpdateEarly(Program& program, int64_t wanted_bytes) {
  Grouping grouping(program);
  int64_t peak = grouping.peak();
  std::optional<Program> best;
  for (const int lag : kLags) {
    const std::vector<std::vector<int>> behind = grouping.Places(lag);
    if (behind.empty()) return false;
    Program moved = Reordered(program, behind);
    const int64_t held = MemoryProfile(moved).peak();
    if (held < peak) {
      peak = held;
      best = std::move(moved);
    }
    if (peak <= wanted_bytes || !grouping.waits()) break;
  }
  if (!best.has_value()) return false;
  program = *std::move(best);
  return true;
}

}  // namespace spmd::partition
