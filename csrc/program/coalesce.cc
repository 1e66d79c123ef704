// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/coalesce.h"

#include <utility>
#include <variant>

namespace spmd::program {
namespace {

// With every coordinate 0: there is one device.
Expr AtFirst(const Expr& e) {
  switch (e.op()) {
    case Expr::Op::kConst:
    case Expr::Op::kStart:
    case Expr::Op::kSize:
    case Expr::Op::kExtent:
      return e;
    case Expr::Op::kCoord:
      return 0;
    default:
      return Expr::Binary(e.op(), AtFirst(e.lhs()), AtFirst(e.rhs()));
  }
}

Attributes AtFirst(const Attributes& attributes) {
  Attributes result = attributes;
  for (const auto& [name, attr] : attributes) {
    if (const auto* e = std::get_if<Expr>(&attr)) {
      result.Set(name, AtFirst(*e));
    } else if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
      std::vector<Expr> first;
      for (const Expr& e : *list) first.push_back(AtFirst(e));
      result.Set(name, std::move(first));
    }
  }
  return result;
}

bool SameWindows(const Program& program, const Instruction& move) {
  for (size_t k = 0; k < move.results.size(); ++k) {
    if (program.values[move.operands[k]].windows != program.values[move.results[k]].windows) {
      return false;
    }
  }
  return true;
}

}  // namespace

Program Coalesce(const Program& program) {
  Program result = program;
  result.grids = {Grid::SingleDevice()};
  result.grid_names = {program.grid_names.empty() ? "m" : program.grid_names[0]};
  for (Value& value : result.values) {
    value.grid = 0;
    value.sharding = Sharding::Replicated(value.sharding.rank());
    for (WindowDim& window : value.windows) {
      window.chunk = 0;
      window.begin = AtFirst(window.begin);
      window.end = AtFirst(window.end);
    }
  }
  for (Instruction& instruction : result.instructions) {
    instruction.added_once.clear();
    if (instruction.code == OpCode::kCall) {
      instruction.attributes = AtFirst(instruction.attributes);
    } else if (IsMove(instruction.code)) {
      instruction.code = SameWindows(result, instruction) ? OpCode::kPermute : OpCode::kExchange;
      instruction.axes.clear();
      instruction.dim = instruction.to_dim = -1;
    }
  }
  return result;
}

}  // namespace spmd::program
