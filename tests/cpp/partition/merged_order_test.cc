// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/merged_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "csrc/ir/verifier.h"
#include "csrc/reference/interpreter.h"
#include "csrc/rules/builder.h"
#include "tests/cpp/partition/planned.h"

namespace spmd::partition {
namespace {

using testing::ElementsAre;

std::vector<int64_t> Sizes(const DimOrder& order) {
  std::vector<int64_t> sizes;
  for (const DimOrder::Part& part : order.parts) sizes.push_back(part.size);
  return sizes;
}

// x: f32[32,8,64] {},{data},{} merged into [256,64], the example of the header.
struct Merged {
  Planned p{R"(mesh @m [data=4]
graph {
  %x: f32[32,8,64] @m {},{data},{}
  %0: f32[256,64] = aten::view(%x, size=[256,64])
  return %0
})"};
  propagate::Cut cut{propagate::CutOf(*p.factors[0], p.factors[0]->operands[0],
                                      p.graph.type(0).dims, p.Of("{},{data},{}"), p.grid())};
  std::optional<DimOrder> order =
      OrderOf(*p.factors[0], p.factors[0]->results[0][0], cut, p.grid());
};

TEST(MergedOrder, ShardedPartsAreIntervalsOnceTheyComeFirst) {
  const Merged m;
  ASSERT_TRUE(m.order.has_value());
  EXPECT_THAT(Sizes(*m.order), ElementsAre(32, 4, 2));
  EXPECT_THAT(SizesApart(*m.order), ElementsAre(32, 8));
  const DimSharding sharding = m.order->ShardingOf(m.p.grid());
  EXPECT_EQ(m.p.grid().AxesToString(sharding.axes), "data");
  EXPECT_EQ(sharding.chunk, 0);  // 256 indices in 4 shards of 64
}

TEST(MergedOrder, NoOrderIsNeededWhereTheMajorPartIsSharded) {
  const Merged m;
  propagate::Cut cut = m.cut;
  std::swap(cut[0], cut[1]);
  EXPECT_FALSE(
      OrderOf(*m.p.factors[0], m.p.factors[0]->results[0][0], cut, m.p.grid()).has_value());
}

TEST(MergedOrder, EachDeviceHasItsIndicesSideBySide) {
  const Merged m;
  ir::Graph graph;
  const ir::ValueId x = graph.AddInput(*TensorType::Parse("f32[256]"));
  rules::Builder builder(&graph, 0, -1);
  const DimOrders orders = {*m.order};
  const ir::ValueId ordered = InOrder(builder, Apart(builder, x, orders), Dims{256}, orders);
  graph.AddOutput({ordered});
  graph.AddOutput({builder.View(ApartFromOrder(builder, ordered, orders), {256})});
  ASSERT_TRUE(ir::Verify(graph).ok()) << ir::Verify(graph);
  std::vector<double> indices(256);
  for (int i = 0; i < 256; ++i) indices[i] = i;
  const auto out =
      *reference::Interpret(graph, std::vector<reference::Literal>{{graph.type(x), indices}});
  EXPECT_EQ(out[1].data, indices) << "and back";
  for (int device = 0; device < 4; ++device) {
    std::set<int> batches;  // of the merged index t·8 + b
    for (int i = 0; i < 64; ++i) batches.insert(static_cast<int>(out[0].data[device * 64 + i]) % 8);
    EXPECT_EQ(batches, (std::set<int>{2 * device, 2 * device + 1}));
  }
}

TEST(MergedOrder, BlocksAreOrderedWithinEach) {
  const Merged m;
  const std::optional<Blocks> blocks = BlocksOf(*m.order);
  ASSERT_TRUE(blocks.has_value());
  EXPECT_EQ(blocks->size, 8);
  EXPECT_THAT(Sizes(blocks->inner), ElementsAre(4, 2));
  EXPECT_TRUE(BlocksInOrder(32, blocks->inner) == *m.order);
  EXPECT_TRUE(IsNatural({DimOrder(), DimOrder()}));
  EXPECT_FALSE(IsNatural({DimOrder(), *m.order}));
}

TEST(MergedOrder, ShardsOfEqualSizesAreAPartEach) {
  const Merged m;
  const DimSharding data{m.p.grid().SubAxesOf("data")};
  EXPECT_THAT(Sizes(InShards(8, data, m.p.grid())), ElementsAre(4, 2));
  EXPECT_THAT(Sizes(InShards(4, data, m.p.grid())), ElementsAre(4));
  EXPECT_THAT(Sizes(InShards(6, data, m.p.grid())), ElementsAre(6));
}

}  // namespace
}  // namespace spmd::partition
