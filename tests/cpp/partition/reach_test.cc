// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/reach.h"

#include <gtest/gtest.h>

#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

// The merged dimension stops the axis of %x; the sum after it could be sharded by it.
constexpr char kMerge[] = R"(mesh @m [a=2]
graph {
  %x: f32[3,4] @m {},{a}
  %0: f32[12] = aten::view(%x, size=[12])
  %1: f32[12] = aten::relu(%0)
  return %1
})";

TEST(Reach, WithoutNewsItIsWhatPropagationFound) {
  const Planned p(kMerge);
  const Reach reach(p.graph);
  EXPECT_EQ(p.Text(reach.Of(p.ValueOf("x"))), "{},{a}");
  EXPECT_EQ(p.Text(reach.Of(p.ValueOf("0"))), "{}");
  EXPECT_FALSE(reach.IsBeyond(p.ValueOf("0")));
}

TEST(Reach, AnAxisThatContinuesGoesOnThroughTheOpsAfter) {
  const Planned p(kMerge);
  Reach reach(p.graph);
  reach.Note(p.ValueOf("0"), 0, p.Of("{a}"));
  EXPECT_TRUE(reach.IsBeyond(p.ValueOf("0")));
  EXPECT_EQ(p.Text(reach.Of(p.ValueOf("0"))), "{a}");
  reach.NoteResults(p.graph.node(1), p.factors[1]);
  EXPECT_EQ(p.Text(reach.Of(p.ValueOf("1"))), "{a}");
  const propagate::Cut cut = reach.CutFrom(p.graph.node(1), p.factors[1], 0, {{p.Of("{a}")}});
  EXPECT_EQ(cut[0].axes, p.grid().SubAxesOf("a"));
}

TEST(Reach, WhatPropagationFoundStays) {
  const Planned p(kMerge);
  Reach reach(p.graph);
  reach.Note(p.ValueOf("x"), 0, p.Of("{a},{}"));  // {a} shards the other dimension already
  EXPECT_EQ(p.Text(reach.Of(p.ValueOf("x"))), "{},{a}");
  EXPECT_FALSE(reach.IsBeyond(p.ValueOf("x")));
}

}  // namespace
}  // namespace spmd::partition
