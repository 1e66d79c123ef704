// SPDX-License-Identifier: Apache-2.0
// One message per clause, word for word, each from a program broken in one place.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "csrc/program/program.h"
#include "tests/cpp/program/verdict.h"

namespace spmd::program {
namespace {

TEST(VerifierTest, AcceptsWhatIsRight) {
  for (const char* body : {
           "",
           "%0: f32[32,10] @m {data},{model} = slice(%y) {model} dim(1)",
           "%0: f32[32,10] @m {data},{model:0 chunk=6} = all_gather(%x) {model:1} dim(1)",
           "%0: f32[32,10] @m {data,model},{} = all_to_all(%x) {model} dim(1) to(0)",
           "%0: f32[32,10] @m {data},{} = all_reduce(%u) {model}",
           "%0: f32[32,10] @m {data},{} unreduced(sum){model:0} = all_reduce(%u) {model:1}",
           "%0: f32[32,10] @m {data},{model} = reduce_scatter(%u) {model} dim(1)",
           "%0: f32[32,10] @m {data},{} unreduced(max){model} = term(%y) {model}",
           "%0: f32[32,10] @m {},{data} = exchange(%y)",
           "%0: f32[32,10] @r {x},{} = exchange(%y)",
           "%0: f32[32,10] @m {model:0},{} = permute(%y)",
           "%0: f32[32,10] @m {data},{model} window(1: start(r0,0)..start(r0,0)+1 of 10) = "
           "slice(%y) {model} dim(1)",
       }) {
    EXPECT_TRUE(Verdict(body).ok()) << body << "\n" << Verdict(body);
  }
  EXPECT_TRUE(Verdict("%0: f32[32,10] @m {data},{} = call f(%d, k=coord(1)) updates(0)\nfree %d",
                      "return %0 -> %d")
                  .ok());
}

TEST(VerifierTest, ValuesAreUsedWhileTheyLive) {
  EXPECT_EQ(ErrorOf("free %d\n%0: f32[2] @m {} = call f(%d)"),
            "instruction 1 (call f, %0): value %d is used after its free");
  EXPECT_EQ(ErrorOf("free %d\nfree %d"), "instruction 1 (free): value %d is used after its free");
  EXPECT_EQ(ErrorOf("free %d, %d"), "instruction 0 (free): %d is freed twice");
  EXPECT_EQ(ErrorOf("free %x"), "instruction 0 (free): %x is an input that the caller keeps");
  EXPECT_EQ(ErrorOf("free %d", "return %d"), "return: value %d is used after its free");
}

TEST(VerifierTest, ShardingsFitTypes) {
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data},{} = call f()"),
            "value %0: sharding {data},{} has 2 dimensions, [8] has 1");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data chunk=2} = call f()"),
            "value %0: sharding {data chunk=2} of [8] has chunk 2 in dimension 0; it must be at "
            "least 3");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(1: 0..1 of 8) = call f()"),
            "value %0: window of dimension 1; windows name the value's dimensions, ascending");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(0: 0..1 of 8) window(0: 0..1 of 8) = call f()"),
            "value %0: window of dimension 0; windows name the value's dimensions, ascending");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(0: 0..1 of 8 chunk 2) = call f()"),
            "value %0: window of dimension 0 over 8 indices with chunk 2; the chunk must be at "
            "least 3");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(0: 0..1 of 8 order(4..8,0..3)) = call f()"),
            "value %0: the order of dimension 0 has 7 indices, not 8");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(0: 0..1 of 8 order(0..9223372036854775807)) = "
                    "call f()"),
            "value %0: the order of dimension 0 has the indices [0,9223372036854775807), which no "
            "tensor has");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(0: start(r0,1)..1 of 8) = call f()"),
            "value %0: the window of dimension 0 refers to start(r0,1); it may use start(r0,0), "
            "size(r0,0), extent(r0,0) and coordinates along the dimension's axes");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {data} window(0: coord(2)..1 of 8) = call f()"),
            "value %0: the window of dimension 0 refers to coord(2); it may use start(r0,0), "
            "size(r0,0), extent(r0,0) and coordinates along the dimension's axes");
}

TEST(VerifierTest, MovesKeepTypesAndMeshes) {
  EXPECT_EQ(ErrorOf("%0: f32[32,11] @m {data},{} = all_gather(%x) {model} dim(1)"),
            "instruction 0 (all_gather, %0): %x is f32[32,10], %0 is f32[32,11]; a move keeps the "
            "type");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @r {},{} = all_gather(%x) {y} dim(1)"),
            "instruction 0 (all_gather, %0): %x and %0 live on different meshes; only an exchange "
            "goes across");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_gather(%x, %y) {model} dim(1)"),
            "instruction 0 (all_gather, %0): a move has as many results as operands, at least one; "
            "this has 2 operands and 1 results");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_gather(%x, k=1) {model} dim(1)"),
            "instruction 0 (all_gather, %0): groups, attributes, added_once and updates belong to "
            "calls");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @r {x},{} = exchange(%u)"),
            "instruction 0 (exchange, %0): only reduced values go from one mesh to another");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {},{} window(0: 0..1 of 32) = exchange(%x)\n"
                    "%1: f32[32,10] @m {data},{} = exchange(%0)"),
            "instruction 1 (exchange, %1): %0 has windows; moves start from plain tiles");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} window(0: 0..1 of 32) = all_reduce(%u) {model}"),
            "instruction 0 (all_reduce, %0): %0 has windows; only exchange and slice produce them");
}

TEST(VerifierTest, MovesDoWhatTheirAxesSay) {
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {},{model} = all_gather(%x) {model} dim(0)"),
            "instruction 0 (all_gather, %0): {model} are not the last axes of dimension 0 of %x "
            "{data},{model}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {},{} = all_gather(%x) {model} dim(1)"),
            "instruction 0 (all_gather, %0): it does not turn %x {data},{model} into %0 {},{}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{model:0} = all_gather(%x) {model:1} dim(1)"),
            "instruction 0 (all_gather, %0): dimension 1 of %0 {data},{model:0} has chunk 5; "
            "gathering gives 6");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_gather(%x) {model} dim(2)"),
            "instruction 0 (all_gather, %0): dim(2) is no dimension of f32[32,10]");
  EXPECT_EQ(
      ErrorOf("%0: f32[32,10] @m {data},{model:0} = slice(%y) {model:0} dim(1)\n"
              "%1: f32[32,10] @m {data},{model} = slice(%0) {model:1} dim(1)"),
      "instruction 1 (slice, %1): dimension 1 of %1 {data},{model} has chunk 3, of which 2 do "
      "not add up to the 5 of %0 {data},{model:0}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_to_all(%x) {model} dim(1) to(1)"),
            "instruction 0 (all_to_all, %0): all_to_all goes from one dimension to another");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_reduce(%y) {model}"),
            "instruction 0 (all_reduce, %0): axis 'model:0' is not unreduced in %y {data},{}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_reduce(%u) {model} dim(1)"),
            "instruction 0 (all_reduce, %0): all_reduce takes no dimension");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_gather(%x) {model} dim(1) to(0)"),
            "instruction 0 (all_gather, %0): all_gather takes no second dimension");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = all_reduce(%u)"),
            "instruction 0 (all_reduce, %0): all_reduce names the axes that it reduces");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} unreduced(max){model:0} = all_reduce(%u) "
                    "{model:1}"),
            "instruction 0 (all_reduce, %0): it does not turn %u {data},{} unreduced(sum){model} "
            "into %0 {data},{} unreduced(max){model:0}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} unreduced(sum){model} = term(%x) {model}"),
            "instruction 0 (term, %0): {model} are used by %x {data},{model}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {},{model} = permute(%x)"),
            "instruction 0 (permute, %0): %x {data},{model} and %0 {},{model} do not have the same "
            "tiles; that takes an exchange");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = exchange(%u)"),
            "instruction 0 (exchange, %0): exchange changes the unreduced axes of %u {data},{} "
            "unreduced(sum){model} to those of %0 {data},{}");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{model} window(1: start(r0,0)..start(r0,0)+2 of 10) "
                    "= slice(%x)"),
            "instruction 0 (slice, %0): shard 3 of dimension 1 needs [9:11] but holds [9:10]; that "
            "takes an exchange");
}

TEST(VerifierTest, OutputsAreDefinedAndBecomeInputsOfTheirType) {
  EXPECT_EQ(ErrorOf("", "return %x -> %y, %u -> %y"), "return: two outputs become %y");
  EXPECT_EQ(ErrorOf("%0: f32[32] @m {} = call f()", "return %0 -> %y"),
            "return: %0 of type f32[32] cannot become %y of type f32[32,10]");
}

TEST(VerifierTest, BrokenIndicesAreErrorsNotCrashes) {
  Program p = *Program::Parse(absl::StrCat(kHead, "return\n}\n"));
  Program bad = p;
  bad.outputs.push_back({99, -1});
  EXPECT_EQ(Verify(bad).message(), "the list of outputs names value 99, which does not exist");
  bad = p;
  bad.values[0].grid = 5;
  EXPECT_EQ(Verify(bad).message(), "value %x: there is no grid 5");
  bad = p;
  bad.values[1].name = "x";
  EXPECT_EQ(Verify(bad).message(), "two values are called %x");
  bad = p;
  bad.inputs.push_back({0});
  EXPECT_EQ(Verify(bad).message(), "value %x is defined twice");
  bad = p;
  Instruction move;
  move.code = OpCode::kSlice;
  move.operands = {kNoValue};
  move.results = {0};
  bad.instructions.push_back(move);
  EXPECT_EQ(Verify(bad).message(),
            "instruction 0 (slice, %x): an operand names value -1, which does not exist");
}

}  // namespace
}  // namespace spmd::program
