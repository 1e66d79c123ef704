// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/write_through.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/string_view.h"

namespace spmd::runtime {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

// Views, and what puts such a part back, with attributes of the same names.
struct PartOp {
  absl::string_view view;
  absl::string_view scatter;
};
constexpr PartOp kPartOps[] = {
    {"aten::select.int", "aten::select_scatter"},
    {"aten::slice.Tensor", "aten::slice_scatter"},
    {"spmd::slice_start", "spmd::slice_start_scatter"},
};

class SharerFinder {
 public:
  SharerFinder(const Program& program, absl::Span<const uint8_t> outlives)
      : program_(program),
        outlives_(outlives),
        maker_(program.values.size(), -1),
        last_use_(program.values.size(), -1) {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      for (const ValueId id : instruction.results) maker_[id] = static_cast<int>(i);
      if (instruction.code == OpCode::kFree) continue;
      for (const ValueId id : instruction.operands) {
        if (id != kNoValue) last_use_[id] = static_cast<int>(i);
      }
    }
  }

  std::vector<Sharers> Find() const {
    std::vector<Sharers> sharers(program_.instructions.size());
    for (int i = 0; i < static_cast<int>(sharers.size()); ++i) {
      for (int next = ScatterOf(i); next >= 0; next = ScatterOf(next)) {
        const Instruction& scatter = program_.instructions[next];
        sharers[i].wholes.push_back(scatter.operands[0]);
        sharers[next].part = scatter.operands[1];
      }
    }
    return sharers;
  }

 private:
  // The scatter that puts what `write` makes of a part back to where the part came from, and is the
  // last to read either; -1 where there is none.
  int ScatterOf(int write) const {
    const Instruction& call = program_.instructions[write];
    if (call.code != OpCode::kCall || call.operands.empty() || call.results.size() != 1) return -1;
    const ValueId part = call.operands[0];
    if (part == kNoValue || maker_[part] < 0 || last_use_[part] != write) return -1;
    const Instruction& view = program_.instructions[maker_[part]];
    const auto* const ops = std::find_if(std::begin(kPartOps), std::end(kPartOps),
                                         [&](const PartOp& o) { return o.view == view.op; });
    if (ops == std::end(kPartOps)) return -1;
    const ValueId whole = view.operands[0];
    if (outlives_[whole] || last_use_[whole] <= write) return -1;
    const Instruction& scatter = program_.instructions[last_use_[whole]];
    const bool puts_back = scatter.op == ops->scatter && scatter.operands.size() == 2 &&
                           scatter.operands[0] == whole && scatter.operands[1] == call.results[0] &&
                           SamePart(view, scatter);
    return puts_back ? last_use_[whole] : -1;
  }

  bool SamePart(const Instruction& view, const Instruction& scatter) const {
    if (program_.values[view.results[0]].type != program_.values[scatter.operands[1]].type) {
      return false;
    }
    return std::all_of(scatter.attributes.begin(), scatter.attributes.end(), [&](const auto& item) {
      const Attr* const same = view.attributes.Find(item.first);
      return same != nullptr && *same == item.second;
    });
  }

  const Program& program_;
  const absl::Span<const uint8_t> outlives_;
  std::vector<int> maker_;     // by value; -1: an input
  std::vector<int> last_use_;  // by value; -1: never read
};

}  // namespace

std::vector<Sharers> FindSharers(const Program& program, absl::Span<const uint8_t> outlives) {
  return SharerFinder(program, outlives).Find();
}

}  // namespace spmd::runtime
