// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/gather_again.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/partition/memory_profile.h"
#include "csrc/partition/passes.h"
#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/program/new_names.h"
#include "csrc/program/uses.h"

namespace spmd::partition {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

// Calls are made again for values of at least this part of the peak. Of smaller ones there are
// many.
constexpr int64_t kLeastPart = 1024;

// Between two uses of a value that can be made again.
struct Gap {
  int maker;  // the instruction
  int from;   // the use before the gap
  int to;     // the use behind it
};

class Gaps {
 public:
  explicit Gaps(const Program& program)
      : program_(program),
        uses_(program),
        bytes_(program::HeldBytes(program)),
        end_(static_cast<int>(program.instructions.size())),
        facts_(program),
        lives_(LivesOf(program)) {
    Collect();
  }

  int size() const { return static_cast<int>(gaps_.size()); }
  const std::vector<Gap>& gaps() const { return gaps_; }
  int64_t BytesOf(const Gap& gap) const {
    return bytes_[program_.instructions[gap.maker].results[0]];
  }

  // The peak, and the instruction that has it, if the first `count` gaps are closed.
  std::pair<int64_t, int> Peak(int count) const {
    std::vector<int64_t> change(end_ + 2, 0);
    const auto alive = [&](int first, int last, int64_t bytes) {
      if (first > last) return;
      change[first] += bytes;
      change[last + 1] -= bytes;
    };
    std::vector<Life> lives = lives_;
    for (int k = 0; k < count; ++k) {
      const Instruction& maker = program_.instructions[gaps_[k].maker];
      for (const ValueId v : maker.operands) {
        if (v != program::kNoValue) lives[v].last = std::max(lives[v].last, gaps_[k].to);
      }
      alive(gaps_[k].from + 1, gaps_[k].to - 1, -bytes_[maker.results[0]]);
    }
    for (size_t v = 0; v < lives.size(); ++v) alive(lives[v].first, lives[v].last, bytes_[v]);
    int64_t now = 0;
    std::pair<int64_t, int> peak{0, 0};
    for (int i = 0; i <= end_; ++i) {
      now += change[i];
      if (now > peak.first) peak = {now, i};
    }
    return peak;
  }

 private:
  // A gather, or an element-wise call that reads the memory once.
  bool CanBeMadeAgain(int i) const {
    if (i < 0) return false;
    const Instruction& maker = program_.instructions[i];
    if (maker.results.size() != 1) return false;
    return maker.code == OpCode::kAllGather ||
           (maker.code == OpCode::kCall && !MayFailOnValues(program_, maker));
  }

  // Whether the operands of a call are there anyhow at instruction `to`, whatever is made again.
  bool HasOperands(const Instruction& call, int to) const {
    return std::all_of(call.operands.begin(), call.operands.end(), [&](ValueId v) {
      return v == program::kNoValue || (lives_[v].last >= to && !CanBeMadeAgain(facts_.maker(v)));
    });
  }

  void Collect() {
    const auto [peak, fullest] = Peak(0);
    for (int i = 0; i < end_; ++i) {
      const Instruction& maker = program_.instructions[i];
      // An output lives on whatever happens.
      if (!CanBeMadeAgain(i) || lives_[maker.results[0]].last == end_) continue;
      const bool is_call = maker.code == OpCode::kCall;
      if (is_call && bytes_[maker.results[0]] < peak / kLeastPart) continue;
      const absl::Span<const int> uses = uses_.Of(maker.results[0]);
      for (size_t k = 1; k < uses.size(); ++k) {
        if (uses[k] <= uses[k - 1] + 1) continue;
        if (!is_call || HasOperands(maker, uses[k])) gaps_.push_back({i, uses[k - 1], uses[k]});
      }
    }
    std::stable_sort(
        gaps_.begin(), gaps_.end(), [&, fullest = fullest](const Gap& a, const Gap& b) {
          const auto key = [&](const Gap& g) {
            return std::make_tuple(!(g.from < fullest && fullest < g.to),
                                   program_.instructions[g.maker].code != OpCode::kCall,
                                   g.from - g.to);
          };
          return key(a) < key(b);
        });
  }

  const Program& program_;
  const program::Uses uses_;
  const std::vector<int64_t> bytes_;  // by value
  const int end_;
  const program::DefUse facts_;
  const std::vector<Life> lives_;
  std::vector<Gap> gaps_;
};

// Makes a value again behind each of the gaps. Returns these values.
std::vector<ValueId> RewriteGaps(std::vector<Gap> gaps, Program& program) {
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const Gap& a, const Gap& b) { return a.to < b.to; });
  program::NewNames names(program);
  std::vector<ValueId> again_values;
  std::vector<ValueId> now(program.values.size());  // what stands for a value
  for (size_t v = 0; v < now.size(); ++v) now[v] = static_cast<ValueId>(v);
  std::vector<Instruction> old = std::move(program.instructions);
  program.instructions.clear();
  auto gap = gaps.begin();
  for (int i = 0; i < static_cast<int>(old.size()); ++i) {
    for (; gap != gaps.end() && gap->to == i; ++gap) {
      Instruction again = old[gap->maker];
      const ValueId v = again.results[0];
      program::Value value = program.values[v];
      value.name.clear();
      now[v] = names.AddValue(std::move(value));
      again_values.push_back(now[v]);
      again.results[0] = now[v];
      again.source = old[i].source;
      program.instructions.push_back(std::move(again));
    }
    Instruction instruction = old[i];
    for (ValueId& v : instruction.operands) {
      if (v != program::kNoValue) v = now[v];
    }
    program.instructions.push_back(std::move(instruction));
  }
  return again_values;
}

// What the gathers of `values` send, per device.
int64_t WireBytes(const Program& program, const std::vector<ValueId>& values) {
  std::vector<bool> again(program.values.size(), false);
  for (const ValueId v : values) again[v] = true;
  int64_t bytes = 0;
  for (const program::Traffic& t : program::CollectiveTraffic(program)) {
    if (again[program.instructions[t.instruction].results[0]]) bytes += t.wire_bytes;
  }
  return bytes;
}

}  // namespace

GatheredAgain GatherAgain(Program& program, int64_t limit_bytes) {
  GatheredAgain result;
  std::vector<Gap> chosen;
  {
    const Gaps gaps(program);
    result.bytes_before = result.bytes_after = gaps.Peak(0).first;
    const int64_t wanted = std::max(limit_bytes, gaps.Peak(gaps.size()).first);
    if (result.bytes_before <= wanted) return result;
    int enough = gaps.size(), few = 0;  // `few` are too few
    while (enough - few > 1) {
      const int middle = few + (enough - few) / 2;
      (gaps.Peak(middle).first <= wanted ? enough : few) = middle;
    }
    result.bytes_after = gaps.Peak(enough).first;
    for (int k = 0; k < enough; ++k) {
      const Gap& gap = gaps.gaps()[k];
      result.bytes += gaps.BytesOf(gap);
      result.gathers += program.instructions[gap.maker].code == OpCode::kAllGather;
    }
    chosen.assign(gaps.gaps().begin(), gaps.gaps().begin() + enough);
  }
  result.values = RewriteGaps(std::move(chosen), program);
  result.wire_bytes = WireBytes(program, result.values);
  return result;
}

}  // namespace spmd::partition
