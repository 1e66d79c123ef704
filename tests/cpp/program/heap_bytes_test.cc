// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/heap_bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace spmd {
namespace {

// A graph or program of `n` equal calls.
ir::Graph GraphOf(int n) {
  std::string text = "graph {\n %x: f32[4]\n", last = "%x";
  for (int i = 0; i < n; ++i) {
    absl::StrAppend(&text, " %", i, ": f32[4] = a::b(", last, ", size=[1,2,3])\n");
    last = absl::StrCat("%", i);
  }
  return *ir::Graph::Parse(text + " return " + last + "\n}");
}
program::Program ProgramOf(int n) {
  std::string text = "mesh @m [x=2]\nprogram {\n %x: f32[4] @m {x}\n", last = "%x";
  for (int i = 0; i < n; ++i) {
    absl::StrAppend(&text, " %", i, ": f32[4] @m {x} = call a::b(", last, ", size=size(r0,0))\n");
    last = absl::StrCat("%", i);
  }
  return *program::Program::Parse(text + " return " + last + "\n}");
}

TEST(HeapBytes, GrowWithWhatIsHeld) {
  EXPECT_EQ(HeapBytes(Attributes()), 0);
  EXPECT_EQ(HeapBytes(std::string("short")), 0);  // lies inside the string
  EXPECT_GE(HeapBytes(std::string(100, 'x')), 100);
  const Expr start = Expr::Start(Result(0), 0);
  EXPECT_GT(HeapBytes(start + Expr::Size(Result(0), 0)), HeapBytes(start));
  EXPECT_GT(HeapBytes(Attributes{{"size", std::vector<int64_t>(50)}}), 50 * 8);
}

TEST(HeapBytes, OfGraphsAndProgramsAreThoseOfEachCall) {
  // A node is at least its struct, a value its own, and twice as many nodes take about twice as
  // much.
  const int64_t graph = ir::HeapBytes(GraphOf(64)), larger = ir::HeapBytes(GraphOf(128));
  EXPECT_GE(graph, 64 * static_cast<int64_t>(sizeof(ir::Node) + sizeof(ir::Value)));
  EXPECT_NEAR(static_cast<double>(larger) / static_cast<double>(graph), 2, 0.2);
  const int64_t program = program::HeapBytes(ProgramOf(64));
  const int64_t larger_program = program::HeapBytes(ProgramOf(128));
  EXPECT_GE(program, 64 * static_cast<int64_t>(sizeof(program::Instruction)));
  EXPECT_NEAR(static_cast<double>(larger_program) / static_cast<double>(program), 2, 0.2);
}

}  // namespace
}  // namespace spmd
