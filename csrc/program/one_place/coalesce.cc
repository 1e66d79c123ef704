// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/one_place/coalesce.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/rules/registry.h"

namespace spmd::program {
namespace {

// `e` with coordinate 0 along all axes that are not kept, since one device is left along each.
Expr AtFirst(const Expr& e, AxisMask kept) {
  switch (e.op()) {
    case Expr::Op::kConst:
    case Expr::Op::kStart:
    case Expr::Op::kSize:
    case Expr::Op::kExtent:
      return e;
    case Expr::Op::kCoord:
      return (MaskOf(static_cast<AxisId>(e.dim())) & kept) != 0 ? e : Expr(0);
    default:
      return Expr::Binary(e.op(), AtFirst(e.lhs(), kept), AtFirst(e.rhs(), kept));
  }
}

Attributes AtFirst(const Attributes& attributes, AxisMask kept) {
  Attributes result = attributes;
  for (const auto& [name, attr] : attributes) {
    if (const auto* e = std::get_if<Expr>(&attr)) {
      result.Set(name, AtFirst(*e, kept));
    } else if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
      std::vector<Expr> first;
      for (const Expr& e : *list) first.push_back(AtFirst(e, kept));
      result.Set(name, std::move(first));
    }
  }
  return result;
}

AxisList Only(AxisMask kept, const AxisList& axes) {
  AxisList result;
  for (AxisId a : axes) {
    if ((MaskOf(a) & kept) != 0) result.push_back(a);
  }
  return result;
}

Sharding Only(AxisMask kept, const Sharding& sharding) {
  Sharding result = Sharding::Replicated(sharding.rank());
  for (int d = 0; d < sharding.rank(); ++d) {
    result.dims[d].axes = Only(kept, sharding.dims[d].axes);
  }
  result.unreduced = Only(kept, sharding.unreduced);
  result.manual = Only(kept, sharding.manual);
  if (result.IsUnreduced()) result.reduce_kind = sharding.reduce_kind;
  return result;
}

bool SameShardings(const Program& program, const Instruction& move) {
  for (size_t k = 0; k < move.results.size(); ++k) {
    if (!(program.values[move.operands[k]].sharding == program.values[move.results[k]].sharding)) {
      return false;
    }
  }
  return true;
}

bool SameWindows(const Program& program, const Instruction& move) {
  for (size_t k = 0; k < move.results.size(); ++k) {
    if (program.values[move.operands[k]].windows != program.values[move.results[k]].windows) {
      return false;
    }
  }
  return true;
}

// On one device, the exchange in front of an op that pads its operand (rules::ZeroPadding) copies
// the whole image to add rows outside it. This pass gives the op the image itself, and the padding
// that has the same effect.
class OwnPadding {
 public:
  explicit OwnPadding(Program& program) : program_(program) {}

  void Restore() {
    const DefUse facts(program_);
    bool any = false;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Instruction& call = program_.instructions[i];
      if (call.code != OpCode::kCall) continue;
      const std::optional<rules::ZeroPadding>& padding = rules::FactsOf(call.op).padding;
      if (!padding) continue;
      const int exchange = facts.maker(call.operands[padding->image]);
      any = (exchange >= 0 && Restore(call, *padding, exchange, static_cast<int>(i))) || any;
    }
    if (any) DropUnused();
  }

 private:
  bool Restore(Instruction& call, const rules::ZeroPadding& op, int exchange, int now) {
    const Instruction& move = program_.instructions[exchange];
    const ValueId image = MovedTo(move, call.operands[op.image]);
    if (image == kNoValue || call.attributes.GetBoolOr("transposed", false)) return false;
    for (int i = exchange; i < now; ++i) {
      const Instruction& between = program_.instructions[i];
      if (between.updates >= 0 && between.operands[between.updates] == image) return false;
    }
    const Dims& dims = program_.values[image].type.dims;
    const Dims& kernel =
        program_.values[op.kernel_is_result ? call.results[0] : call.operands[1]].type.dims;
    std::vector<int64_t> padding = PerDimension(call, "padding", dims.size() - 2);
    const std::vector<int64_t> stride = PerDimension(call, "stride", dims.size() - 2);
    const std::vector<int64_t> dilation = PerDimension(call, "dilation", dims.size() - 2);
    if (padding.empty() || stride.empty() || dilation.empty()) return false;
    for (const WindowDim& window : program_.values[call.operands[op.image]].windows) {
      const int d = window.dim - 2;
      if (d < 0 || padding[d] != 0) return false;
      const Interval seen = window.At(*program_.grids[0], {}, 0);
      const int64_t span = (kernel[window.dim] - 1) * dilation[d] + 1;
      padding[d] = -seen.begin;
      const int64_t padded = dims[window.dim] + 2 * padding[d];
      // The padded image must have the same first window and the same number of windows.
      if (padding[d] < 0 || seen.size() < span ||
          (padded - span) / stride[d] != (seen.size() - span) / stride[d]) {
        return false;
      }
    }
    call.operands[op.image] = image;
    call.attributes.Set("padding", std::move(padding));
    return true;
  }

  // The operand from which an exchange makes `result`, if it only adds zeros outside; else
  // kNoValue.
  ValueId MovedTo(const Instruction& move, ValueId result) const {
    if (move.code != OpCode::kExchange || move.fill != 0) return kNoValue;
    for (size_t k = 0; k < move.results.size(); ++k) {
      if (move.results[k] == result && program_.values[move.operands[k]].windows.empty()) {
        return move.operands[k];
      }
    }
    return kNoValue;
  }

  // The entries of a list attribute; a single entry stands for every dimension. Empty if the list
  // is not known before the program runs.
  static std::vector<int64_t> PerDimension(const Instruction& call, absl::string_view name,
                                           size_t rank) {
    const Attr* attr = call.attributes.Find(name);
    const auto* list = attr == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(attr);
    if (list == nullptr || (list->size() != 1 && list->size() != rank)) return {};
    return list->size() == rank ? *list : std::vector<int64_t>(rank, list->front());
  }

  // Removes exchanges whose results nothing uses any more, and inserts all frees anew.
  void DropUnused() {
    const DefUse facts(program_);
    const auto drops = [&](const Instruction& i) {
      return i.code == OpCode::kFree ||
             (i.code == OpCode::kExchange &&
              std::none_of(i.results.begin(), i.results.end(),
                           [&](ValueId v) { return facts.uses(v) > 0; }));
    };
    auto& all = program_.instructions;
    all.erase(std::remove_if(all.begin(), all.end(), drops), all.end());
    InsertFrees(program_);
  }

  Program& program_;
};

void KeepOnly(AxisMask kept, Program& program) {
  for (Value& value : program.values) {
    value.sharding = Only(kept, value.sharding);
    for (WindowDim& window : value.windows) {
      window.chunk = 0;
      window.begin = AtFirst(window.begin, kept);
      window.end = AtFirst(window.end, kept);
    }
  }
  for (Instruction& instruction : program.instructions) {
    for (AddedOnce& added : instruction.added_once) added.axes = Only(kept, added.axes);
    instruction.added_once.erase(
        std::remove_if(instruction.added_once.begin(), instruction.added_once.end(),
                       [](const AddedOnce& added) { return added.axes.empty(); }),
        instruction.added_once.end());
    if (instruction.code == OpCode::kCall) {
      instruction.attributes = AtFirst(instruction.attributes, kept);
    } else if (IsMove(instruction.code)) {
      instruction.axes = Only(kept, instruction.axes);
      if (!instruction.axes.empty() && !SameShardings(program, instruction)) continue;
      instruction.code = SameWindows(program, instruction) ? OpCode::kPermute : OpCode::kExchange;
      instruction.axes.clear();
      instruction.dim = instruction.to_dim = -1;
    }
  }
  OwnPadding(program).Restore();
}

}  // namespace

Program Coalesce(const Program& program) {
  Program result = program;
  result.grids = {Grid::SingleDevice()};
  result.grid_names = {program.grid_names.empty() ? "m" : program.grid_names[0]};
  for (Value& value : result.values) value.grid = 0;
  KeepOnly(0, result);
  return result;
}

Program CoalesceKeeping(const Program& program, AxisMask kept) {
  Program result = program;
  KeepOnly(kept, result);
  return result;
}

}  // namespace spmd::program
