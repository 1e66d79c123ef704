// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/fit.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/program/same_tiles.h"

namespace spmd::trace {

namespace {

bool IsSame(const LayoutPtr& a, const LayoutPtr& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

bool IsTerms(const LayoutPtr& layout) {
  return layout != nullptr && layout->sharding().IsUnreduced();
}

bool SameButForTerms(const Layout& a, const Layout& b) {
  if (SameTiles(a, b)) return true;
  if (!a.sharding().IsUnreduced() && !b.sharding().IsUnreduced()) return false;
  return Layout(a.grid(), a.sharding().Reduced(), a.dims()) ==
         Layout(b.grid(), b.sharding().Reduced(), b.dims());
}

// True if the program was compiled for the layout in which the tape's input number `input` has
// settled, and for overwriting it: if it leaves another one, so would the next program.
bool CompiledForSettled(const CachedProgram& cached, const Tape& tape, int input) {
  const auto it = absl::c_lower_bound(cached.inputs, input);
  if (it == cached.inputs.end() || *it != input) return false;
  const size_t k = it - cached.inputs.begin();
  return cached.taken[k] == nullptr && IsSame(cached.asked[k], tape.inputs()[input].settled);
}

// The op that makes the value, or the first one that reads an input, with the user's line.
std::string OpOf(const Tape& tape, TapeId value) {
  const int32_t made = tape.origin(value).record;
  const std::vector<Record>& records = tape.records();
  const auto it = made >= 0 ? records.begin() + made : absl::c_find_if(records, [&](const auto& r) {
    return absl::c_linear_search(r.operands, value);
  });
  if (it == records.end()) return "no op";
  const std::string line =
      it->source < 0 ? "" : absl::StrCat(" (", tape.sources()[it->source], ")");
  return absl::StrCat(it->op->name, line);
}

std::string TextOf(const LayoutPtr& layout) {
  return absl::StrCat(layout->sharding().ToString(*layout->grid()), " on ",
                      layout->grid()->ToString());
}

}  // namespace

std::optional<Misfit> FindMisfit(const CachedProgram& cached, const Tape& tape, const Live& live) {
  using Kind = Misfit::Kind;
  const program::Program& program = cached.program->program();
  for (size_t k = 0; k < cached.inputs.size(); ++k) {
    const TapeInput& input = tape.inputs()[cached.inputs[k]];
    if (live.IsLost(input.id)) return Misfit{Kind::kLost, input.id};
    const LayoutPtr& layout = tape.LayoutToTake(static_cast<size_t>(cached.inputs[k]),
                                                /*overwritten=*/cached.taken[k] == nullptr);
    const program::ValueId taken = program.inputs[k].value;
    if (IsTerms(layout) == program.values[taken].sharding.IsUnreduced()) continue;
    if (!IsSame(layout, cached.asked[k])) return Misfit{Kind::kTerms, input.id};
  }
  std::optional<Misfit> held, other;
  auto next = cached.outputs.begin();  // they usually come in the same order
  for (const OutputSpec& wanted : live.outputs) {
    const auto is_wanted = [&](const OutputSpec& o) { return o.value == wanted.value; };
    auto it = std::find_if(next, cached.outputs.end(), is_wanted);
    if (it == cached.outputs.end()) {
      it = std::find_if(cached.outputs.begin(), next, is_wanted);
      if (it == next) {
        if (held.has_value()) {
          ++held->others;
        } else {
          held = Misfit{Kind::kHeld, wanted.value};
        }
        continue;
      }
    }
    next = it + 1;
    if (held.has_value() || other.has_value()) continue;
    if (it->held && !wanted.held && IsTerms(cached.layouts[it - cached.outputs.begin()])) {
      other = Misfit{Kind::kAsked, wanted.value};
      continue;
    }
    if (!it->apart.empty() && !wanted.may_be_apart) {
      other = Misfit{Kind::kForm, wanted.value};
      continue;
    }
    if (wanted.becomes == kNoId || !it->apart.empty()) continue;
    const int input = tape.origin(wanted.becomes).input;
    const LayoutPtr& settled = tape.inputs()[input].settled;
    const LayoutPtr& made = cached.layouts[it - cached.outputs.begin()];
    if (settled == nullptr || made == settled || SameButForTerms(*made, *settled)) continue;
    if (it->becomes == wanted.becomes && CompiledForSettled(cached, tape, input)) continue;
    other = Misfit{Kind::kLayout, wanted.value, settled, made};
  }
  return held.has_value() ? held : other;
}

std::optional<Misfit> FindMoved(const CachedProgram& cached, const Tape& tape) {
  for (size_t k = 0; k < cached.inputs.size(); ++k) {
    const TapeInput& input = tape.inputs()[cached.inputs[k]];
    LayoutPtr& taken = cached.taken[k];
    if (input.left == nullptr || taken == nullptr || input.left == taken) continue;
    if (!SameTiles(*input.left, *taken)) {
      return Misfit{Misfit::Kind::kLeft, input.id, input.left, taken};
    }
    taken = input.left;
  }
  return std::nullopt;
}

std::string MisfitToString(const Misfit& misfit, const CachedProgram& program, const Tape& tape) {
  using Kind = Misfit::Kind;
  const std::string same = absl::StrCat("same ops as program ", program.program->number, ", but ");
  const std::string op = OpOf(tape, misfit.value);
  const std::string type = tape.type(misfit.value).ToString();
  switch (misfit.kind) {
    case Kind::kLost:
      return absl::StrCat(same, type, ", which ", op, " reads, is lost");
    case Kind::kTerms:
      return absl::StrCat(same, type, ", which ", op, " reads, is ",
                          IsTerms(tape.value(misfit.value)->layout) ? "" : "no longer ",
                          "a partial sum");
    case Kind::kHeld:
      return absl::StrCat(same, type, " of ", op,
                          misfit.others == 0
                              ? " is"
                              : absl::StrCat(" and ", misfit.others,
                                             misfit.others == 1 ? " other are" : " others are"),
                          " held afterwards");
    case Kind::kAsked:
      return absl::StrCat(same, type, " of ", op, " may not stay a partial sum");
    case Kind::kForm:
      return absl::StrCat(same, type, " of ", op, " is marked");
    case Kind::kLayout:
      return absl::StrCat(same, type, " of ", op, " stays ", TextOf(misfit.now), ", not ",
                          TextOf(misfit.then));
    case Kind::kLeft:
      return absl::StrCat(same, type, ", which ", op, " reads, is ", TextOf(misfit.now), ", not ",
                          TextOf(misfit.then));
  }
  return same;
}

}  // namespace spmd::trace
