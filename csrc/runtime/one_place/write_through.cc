// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/write_through.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/string_view.h"
#include "csrc/program/def_use.h"

namespace spmd::runtime {
namespace {

using program::Instruction;
using program::kNoValue;
using program::OpCode;
using program::Program;
using program::ValueId;

// A view, and the scatter that puts such a part back, with attributes of the same names.
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
    PartPlace place;
    place.dim = *dim < 0 ? *dim + whole.rank() : *dim;
    if (scatter.op == "spmd::slice_start_scatter") return place;
    const bool select = scatter.op == "aten::select_scatter";
    const bool from_first = !select && scatter.attributes.IsNone("start");
    std::optional<int64_t> begin = Integer(scatter, select ? "index" : "start");
    if (from_first) begin = 0;
    const std::optional<int64_t> step = select ? 1 : Integer(scatter, "step");
    if (!begin || !step) return std::nullopt;
    place.drops_dim = select;
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
    const auto* const ops = std::find_if(std::begin(kPartOps), std::end(kPartOps),
                                         [&](const PartOp& o) { return o.view == view.op; });
    if (ops == std::end(kPartOps)) return -1;
    const ValueId whole = view.operands[0];
    if (facts_.outlives(whole) || facts_.last_user(whole) <= write) return -1;
    const Instruction& scatter = program_.instructions[facts_.last_user(whole)];
    const bool puts_back = scatter.op == ops->scatter && scatter.operands.size() == 2 &&
                           scatter.operands[0] == whole && scatter.operands[1] == call.results[0] &&
                           SamePart(view, scatter);
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
