// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/gather_again.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/partition/memory_profile.h"
#include "csrc/program/analysis.h"
#include "csrc/program/new_names.h"
#include "csrc/program/uses.h"

namespace spmd::partition {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

// Between two uses of a gathered value.
struct Gap {
  int gather;  // the instruction
  int from;    // the use before the gap
  int to;      // the use behind it
};

class Gaps {
 public:
  explicit Gaps(const Program& program)
      : program_(program),
        uses_(program),
        bytes_(program::HeldBytes(program)),
        end_(static_cast<int>(program.instructions.size())),
        lives_(LivesOf(program)) {
    Collect();
  }

  int size() const { return static_cast<int>(gaps_.size()); }
  const std::vector<Gap>& gaps() const { return gaps_; }
  int64_t BytesOf(const Gap& gap) const {
    return bytes_[program_.instructions[gap.gather].results[0]];
  }

  // The peak, and the instruction that has it, if the first `count` gaps are gathered again.
  std::pair<int64_t, int> Peak(int count) const {
    std::vector<int64_t> change(end_ + 2, 0);
    const auto alive = [&](int first, int last, int64_t bytes) {
      if (first > last) return;
      change[first] += bytes;
      change[last + 1] -= bytes;
    };
    std::vector<Life> lives = lives_;
    for (int k = 0; k < count; ++k) {
      const Instruction& gather = program_.instructions[gaps_[k].gather];
      int& last = lives[gather.operands[0]].last;
      last = std::max(last, gaps_[k].to);
      alive(gaps_[k].from + 1, gaps_[k].to - 1, -bytes_[gather.results[0]]);
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
  void Collect() {
    for (int i = 0; i < end_; ++i) {
      const Instruction& gather = program_.instructions[i];
      // An output lives on whatever happens.
      if (gather.code != OpCode::kAllGather || lives_[gather.results[0]].last == end_) continue;
      const absl::Span<const int> uses = uses_.Of(gather.results[0]);
      for (size_t k = 1; k < uses.size(); ++k) {
        if (uses[k] > uses[k - 1] + 1) gaps_.push_back({i, uses[k - 1], uses[k]});
      }
    }
    const int fullest = Peak(0).second;
    std::stable_sort(gaps_.begin(), gaps_.end(), [&](const Gap& a, const Gap& b) {
      const auto key = [&](const Gap& g) {
        return std::make_tuple(!(g.from < fullest && fullest < g.to), g.from - g.to);
      };
      return key(a) < key(b);
    });
  }

  const Program& program_;
  const program::Uses uses_;
  const std::vector<int64_t> bytes_;  // by value
  const int end_;
  const std::vector<Life> lives_;
  std::vector<Gap> gaps_;
};

// Uses behind each of the gaps, which are of one gather each, ascending by `to` for a gather.
void Rewrite(std::vector<Gap> gaps, Program& program) {
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const Gap& a, const Gap& b) { return a.to < b.to; });
  program::NewNames names(program);
  std::vector<ValueId> now(program.values.size());  // what stands for a value
  for (size_t v = 0; v < now.size(); ++v) now[v] = static_cast<ValueId>(v);
  std::vector<Instruction> old = std::move(program.instructions);
  program.instructions.clear();
  auto gap = gaps.begin();
  for (int i = 0; i < static_cast<int>(old.size()); ++i) {
    for (; gap != gaps.end() && gap->to == i; ++gap) {
      Instruction again = old[gap->gather];
      const ValueId v = again.results[0];
      program::Value value = program.values[v];
      value.name.clear();
      now[v] = names.AddValue(std::move(value));
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
    result.gathers = enough;
    result.bytes_after = gaps.Peak(enough).first;
    for (int k = 0; k < enough; ++k) result.bytes += gaps.BytesOf(gaps.gaps()[k]);
    chosen.assign(gaps.gaps().begin(), gaps.gaps().begin() + enough);
  }
  Rewrite(std::move(chosen), program);
  return result;
}

}  // namespace spmd::partition
