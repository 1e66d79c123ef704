// SPDX-License-Identifier: Apache-2.0
// The text of a program in which every clause of the syntax occurs.
#pragma once

#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "csrc/program/program.h"

namespace spmd::program {

inline constexpr char kSyntax[] = R"(mesh @m [data=2, model=4]
mesh @r [x=6] devices=[7,6,2..5]
program {
  scalar $0: float
  scalar $1: int
  %x: f32[32,128] @m {data},{model}
  %w: f32[256,128] @m {},{model} donated
  %b: f32[256] @m {}
  %s: f32[] @m
  %img: bf16[8,3,33,32] @m {data},{},{model},{}
  %0: f32[32,256] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, %b) added_once(2: model) at "train.py:3"
  %1: f32[32,256] @m {data},{} = all_reduce(%0) {model} at "train.py:3"
  free %0
  %2: f32[32,256] @m {data},{model} = slice(%1) {model} dim(1)
  %3: f32[32,256] @m {data},{} = all_gather(%2) {model} dim(1)
  %4: f32[32,256] @m {},{model,data} = all_to_all(%2) {data} dim(0) to(1)
  %5: f32[32,256] @m {},{data,model} = permute(%4)
  %6: f32[32,256] @r {x},{} = exchange(%1)
  %7: bf16[8,3,33,32] @m {data},{},{model},{} window(2: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 33) = exchange(%img) fill(-inf)
  %8: bf16[8,3,33,32] @m {data},{},{model},{} window(2: start(r0,0)*2..min(start(r0,0)*2+5,33) of 16 chunk 5) window(3: -1..33 of 32) = exchange(%img) fill(0.5)
  %9: f32[32,256] @m {data},{} unreduced(max){model} = term(%3) {model}
  %10: f32[32,256] @m {data},{model} = reduce_scatter(%9) {model} dim(1)
  %11: f32[8,64] @m {data},{} unreduced(sum){model}, %12: i64[] @m = call my::split([%x, _], %s, size=[size(r0,0),64], value=$0, dtype=bf16, approximate="tanh") task(7)
  %13: f32[32,128] @m {data},{} unreduced(sum){model}, %14: f32[] @m unreduced(sum){model} = call my::two(%x)
  %15: f32[32,128] @m {data},{}, %16: f32[] @m = all_reduce(%13, %14) {model}
  %17: f32[256,128] @m {},{model} = call aten::mul.Scalar(%w, other=$0) updates(0)
  = call my::print(%17)
  free %7, %8, %w
  return %17 -> %w, %6, %17
}
)";

inline Program ParsedOf(absl::string_view text) {
  auto program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *std::move(program) : Program();
}

}  // namespace spmd::program
