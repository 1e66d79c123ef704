// SPDX-License-Identifier: Apache-2.0
// Errors print the program that they are about, which may break any invariant.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "csrc/program/program.h"

namespace spmd::program {
namespace {

constexpr char kText[] = R"(mesh @m [a=2, b=2]
mesh @r [x=2] devices=[1,0]
program {
  scalar $0: float
  %x: f32[8,4] @m {a},{}
  %w: f32[4,4] @m {},{b} donated
  %0: f32[8,4] @m {a},{} unreduced(sum){b} = call aten::linear(%x, %w, _) added_once(0: b)
  %1: f32[8,4] @m {a},{} = all_reduce(%0) {b} at "train.py:3"
  free %0
  %2: f32[4,4] @m {},{b} = call aten::mul.Scalar(%w, other=$0) updates(0) task(4)
  %3: f32[8,4] @m {},{} = all_gather(%1) {a} dim(0)
  %h: f32[8,4] @m {a},{} window(0: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 8) = exchange(%1)
  return %1, %2 -> %w, %3
}
)";

// The program with a few references drawn from a range around what exists.
Program Broken(Program program, std::mt19937& random) {
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto any = [&](auto& list) -> auto& {
    return list[draw(0, static_cast<int>(list.size()) - 1)];
  };
  for (int edits = draw(1, 3); edits > 0; --edits) {
    Instruction& i = any(program.instructions);
    Value& value = any(program.values);
    switch (draw(0, 13)) {
      case 0:
        value.grid = draw(-2, 4);
        break;
      case 1:
        value.sharding = Sharding::Replicated(draw(0, 3));
        break;
      case 2:
        if (!value.sharding.dims.empty()) {
          any(value.sharding.dims) = {{static_cast<AxisId>(draw(-2, 5))}, draw(-1, 9), false};
        }
        break;
      case 3:
        value.sharding.unreduced = {static_cast<AxisId>(draw(-2, 5))};
        break;
      case 4:
        value.windows.push_back(
            {draw(-2, 4), draw(-2, 9), draw(-2, 9), 0, Expr::Coord(draw(0, 5))});
        break;
      case 5:
        i.operands.push_back(draw(-3, 12));
        break;
      case 6:
        i.results = {draw(-3, 12)};
        break;
      case 7:
        i.groups.push_back({draw(-2, 4), draw(-2, 4)});
        break;
      case 8:
        i.added_once.push_back({draw(-2, 4), {static_cast<AxisId>(draw(-2, 5))}});
        break;
      case 9:
        i.axes.push_back(static_cast<AxisId>(draw(-2, 5)));
        break;
      case 10:
        i.source = draw(-3, 4);
        break;
      case 11:
        i.dim = draw(-2, 4), i.to_dim = draw(-2, 4), i.updates = draw(-2, 4);
        break;
      case 12:
        program.outputs.push_back({draw(-2, 12), draw(-2, 4)});
        break;
      default:
        program.inputs.push_back({draw(-2, 12)});
    }
  }
  return program;
}

TEST(ProgramPrinter, AnyProgramPrintsAndIsVerified) {
  const absl::StatusOr<Program> program = Program::Parse(kText);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_TRUE(Verify(*program).ok()) << Verify(*program);
  std::mt19937 random(9);
  for (int i = 0; i < 20000; ++i) {
    const Program broken = Broken(*program, random);
    ASSERT_FALSE(broken.ToString().empty());
    Verify(broken).IgnoreError();
  }
}

TEST(ProgramPrinter, WhatDoesNotExistIsWrittenWithAQuestionMark) {
  Program program = *Program::Parse(kText);
  program.instructions.resize(1);
  program.instructions[0].operands[0] = 40;
  program.instructions[0].source = 8;
  program.instructions[0].added_once[0].axes = {9};
  program.values[0].grid = 5;
  program.outputs = {{-1, 7}};
  EXPECT_EQ(program.ToString(), R"(mesh @m [a=2, b=2]
mesh @r [x=2] devices=[1,0]
program {
  scalar $0: float
  %x: f32[8,4] @?5 {?0},{}
  %w: f32[4,4] @m {},{b} donated
  %0: f32[8,4] @m {a},{} unreduced(sum){b} = call aten::linear(%?40, %w, _) added_once(0: ?9) at "?8"
  return %?-1 -> %?7
}
)");
}

}  // namespace
}  // namespace spmd::program
