// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/write_through.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "csrc/program/def_use.h"
#include "csrc/rules/registry.h"

namespace spmd::runtime {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

class SharerFinder {
 public:
  explicit SharerFinder(const Program& program) : program_(program), facts_(program) {}

  std::vector<Sharers> Find() const {
    std::vector<Sharers> sharers(program_.instructions.size());
    for (int i = 0; i < static_cast<int>(sharers.size()); ++i) {
      for (int next = ScatterOf(i); next >= 0; next = ScatterOf(next)) {
        const Instruction& scatter = program_.instructions[next];
        const std::optional<PartPlace> place = PlaceOf(scatter);
        if (!place) break;
        sharers[i].wholes.push_back(scatter.operands[0]);
        sharers[next].part = scatter.operands[1];
        sharers[next].place = *place;
      }
    }
    return sharers;
  }

 private:
  static std::optional<int64_t> Integer(const Instruction& call, absl::string_view name) {
    const Attr* const attr = call.attributes.Find(name);
    if (attr == nullptr || !std::holds_alternative<int64_t>(*attr)) return std::nullopt;
    return std::get<int64_t>(*attr);
  }

  // nullopt if the place depends on the tile.
  std::optional<PartPlace> PlaceOf(const Instruction& scatter) const {
    const TensorType& whole = program_.values[scatter.operands[0]].type;
    const std::optional<int64_t> dim = Integer(scatter, "dim");
    if (!dim) return std::nullopt;
    const rules::PutsBack& puts_back = *rules::FactsOf(scatter.op).puts_back;
    PartPlace place;
    place.dim = *dim < 0 ? *dim + whole.rank() : *dim;
    place.drops_dim = puts_back.drops_dim;
    if (puts_back.begin.empty()) return place;
    const bool from_first = scatter.attributes.IsNone(puts_back.begin);
    const std::optional<int64_t> begin = from_first ? 0 : Integer(scatter, puts_back.begin);
    const std::optional<int64_t> step =
        puts_back.step.empty() ? 1 : Integer(scatter, puts_back.step);
    if (!begin || !step) return std::nullopt;
    place.begin = *begin;
    place.step = *step;
    return place;
  }

  // The scatter that puts the result of `write`, computed from a part, back to where the part came
  // from, and that is the last reader of both; -1 if there is none.
  int ScatterOf(int write) const {
    const Instruction& call = program_.instructions[write];
    if (call.code != OpCode::kCall || call.operands.empty() || call.results.size() != 1) return -1;
    const ValueId part = call.operands[0];
    if (part == kNoValue || facts_.maker(part) < 0 || facts_.last_user(part) != write) return -1;
    const Instruction& view = program_.instructions[facts_.maker(part)];
    if (view.code != OpCode::kCall || view.operands.empty()) return -1;
    const ValueId whole = view.operands[0];
    if (whole == kNoValue) return -1;
    if (facts_.outlives(whole) || facts_.last_user(whole) <= write) return -1;
    const Instruction& scatter = program_.instructions[facts_.last_user(whole)];
    if (scatter.code != OpCode::kCall) return -1;
    const std::optional<rules::PutsBack>& reads = rules::FactsOf(scatter.op).puts_back;
    const bool puts_back = reads.has_value() && reads->view == view.op &&
                           scatter.operands.size() == 2 && scatter.operands[0] == whole &&
                           scatter.operands[1] == call.results[0] && SamePart(view, scatter);
    return puts_back ? facts_.last_user(whole) : -1;
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
  const program::DefUse facts_;
};

}  // namespace

std::vector<Sharers> FindSharers(const Program& program) { return SharerFinder(program).Find(); }

}  // namespace spmd::runtime
