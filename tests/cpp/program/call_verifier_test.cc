// SPDX-License-Identifier: Apache-2.0
// What a call may not do, from programs that are wrong in one place.
#include <gtest/gtest.h>

#include <string>

#include "tests/cpp/program/verdict.h"

namespace spmd::program {
namespace {

TEST(CallVerifier, CallsStayOnOneMesh) {
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @r {x},{} = call f(%x)"),
            "instruction 0 (call f, %0): %x lives on mesh @m, other tensors of the call on @r; an "
            "exchange must bring them together");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {},{} = call f(%x) {data}"),
            "instruction 0 (call f, %0): axes and dimensions belong to moves");
}

TEST(CallVerifier, ExpressionsSpeakOfWhatExists) {
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {} = call f(%x, n=size(o1,0))"),
            "instruction 0 (call f, %0): attribute n: there is no size(o1,0)");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {} = call f(%x, n=[1,start(r0,1)])"),
            "instruction 0 (call f, %0): attribute n: there is no start(r0,1)");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {} = call f(_, n=size(o0,0))"),
            "instruction 0 (call f, %0): attribute n: there is no size(o0,0)");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {} = call f(%x, n=coord(3))"),
            "instruction 0 (call f, %0): attribute n: there is no coord(3)");
  EXPECT_EQ(ErrorOf("%0: f32[8] @m {} = call f(%x, n=$1)"),
            "instruction 0 (call f, %0): attribute n: scalar $1 is not declared");
}

TEST(CallVerifier, UpdatedOperandsAreDead) {
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = call f(%d) updates(0)\n"
                    "%1: f32[8] @m {} = call g(%d)"),
            "instruction 1 (call g, %1): value %d is used after it was overwritten");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = call f(%d) updates(0)", "return %d"),
            "return: value %d is used after it was overwritten");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = call f(%y) updates(0)"),
            "instruction 0 (call f, %0): updates(0): %y is an input that the caller keeps");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {},{} = call f(%d) updates(0)"),
            "instruction 0 (call f, %0): updates(0): %d and %0 differ in type or sharding");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = call f(%d) updates(1)"),
            "instruction 0 (call f, %0): updates(1) names no operand");
}

TEST(CallVerifier, AddedOnceIsForTermsOfTheResult) {
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} = call f(%y) added_once(0: model)"),
            "instruction 0 (call f, %0): operand 0 is added once over axes along which the result "
            "is not unreduced");
  EXPECT_EQ(
      ErrorOf("%0: f32[32,10] @m {},{} unreduced(sum){data} = call f(%y) added_once(0: data)"),
      "instruction 0 (call f, %0): operand 0 is added once over axes that shard it");
  EXPECT_EQ(ErrorOf("%0: f32[32,10] @m {data},{} unreduced(sum){model} = call f(%y, _) "
                    "added_once(1: model)"),
            "instruction 0 (call f, %0): added_once names operand 1, which is not there");
}

TEST(CallVerifier, AcceptsWhatIsRight) {
  for (const char* body : {
           "%0: f32[8] @m {} = call f(%x, n=[size(o0,0),start(r0,0)], k=$0, c=coord(1))",
           "%0: f32[32,10] @m {data},{} unreduced(sum){model} = call f(%y) added_once(0: model)",
           "%0: f32[32,10] @m {data},{} = call f([%d, _]) updates(0)",
       }) {
    EXPECT_TRUE(Verdict(body).ok()) << body << "\n" << Verdict(body);
  }
}

}  // namespace
}  // namespace spmd::program
