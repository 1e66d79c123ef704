// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/sharding.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/hash/hash.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd {
namespace {

const Grid& DataModelGrid() {
  static const GridPtr grid = *Grid::Parse("[data=2, model=8]");
  return *grid;
}

std::string ShardingError(absl::string_view text) {
  const auto sharding = Sharding::Parse(text, DataModelGrid());
  EXPECT_EQ(sharding.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(sharding.status().message());
}

TEST(ShardingTest, TextIsCanonical) {
  for (const char* text : {"", "{}", "{data},{model:0,model:1}", "{data chunk=6},{}",
                           "{?},{model,?}", "{model,? chunk=3}", "{},{} unreduced(sum){data}",
                           "unreduced(max){data,model}", "{model:2,data},{model:0}"}) {
    const auto sharding = Sharding::Parse(text, DataModelGrid());
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    EXPECT_EQ(sharding->ToString(DataModelGrid()), text);
  }
}

TEST(ShardingTest, TextRoundTrips) {
  std::mt19937 rng(21);
  for (int i = 0; i < 2000; ++i) {
    const GridPtr grid = RandomGrid(rng);
    const Sharding sharding = RandomSharding(rng, *grid, RandomDims(rng));
    const auto parsed = Sharding::Parse(sharding.ToString(*grid), *grid);
    ASSERT_TRUE(parsed.ok()) << parsed.status() << " " << sharding.ToString(*grid);
    EXPECT_EQ(*parsed, sharding);
    EXPECT_EQ(absl::HashOf(*parsed), absl::HashOf(sharding));
  }
}

TEST(ShardingTest, ParserLeavesWhatIsNotItsOwn) {
  Scanner in("{data},{model}, %2: f32[]");
  const auto sharding = Sharding::Parse(in, DataModelGrid());
  ASSERT_TRUE(sharding.ok());
  EXPECT_EQ(sharding->rank(), 2);
  EXPECT_EQ(in.rest(), ", %2: f32[]");
}

TEST(ShardingTest, ErrorsShowTheOffendingText) {
  EXPECT_EQ(ShardingError("{modle}"),
            "grid [data=2, model=8] has no axis 'modle'; did you mean 'model'?");
  EXPECT_EQ(ShardingError("{data},{data}"),
            "sharding {data},{data} uses axis 'data' twice; an axis shards one dimension only");
  EXPECT_EQ(
      ShardingError("{model:1},{model}"),
      "sharding {model:1},{model} uses axis 'model:1' twice; an axis shards one dimension only");
  EXPECT_EQ(ShardingError("{data} unreduced(sum){data}"),
            "sharding {data} unreduced(sum){data} uses axis 'data' twice; an axis shards one "
            "dimension only");
  EXPECT_EQ(ShardingError("{data"), "expected ',' at the end of '{data'");
  EXPECT_EQ(ShardingError("{data},"), "expected the end at ',' in '{data},'");
  EXPECT_EQ(ShardingError("{data chunk=0}"),
            "expected a chunk of at least 1, after axes at 'chunk=0}' in '{data chunk=0}'");
  EXPECT_EQ(ShardingError("{chunk=4}"),
            "expected a chunk of at least 1, after axes at 'chunk=4}' in '{chunk=4}'");
  EXPECT_EQ(ShardingError("{} unreduced(mean){data}"),
            "'mean' is no kind of reduction; there are sum, prod, max, min, and, or");
  EXPECT_EQ(ShardingError("{} unreduced(sum){}"),
            "expected an axis at '}' in '{} unreduced(sum){}'");
}

TEST(ShardingTest, AnyTextIsParsedOrRefused) {
  std::mt19937 rng(22);
  const std::string alphabet = "{}{},data,model:012?? unreduced(sum)chunk=";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = rng() % 15; n > 0; --n) text.push_back(alphabet[rng() % alphabet.size()]);
    const auto parsed = Sharding::Parse(text, DataModelGrid());
    if (!parsed.ok()) continue;
    EXPECT_EQ(*Sharding::Parse(parsed->ToString(DataModelGrid()), DataModelGrid()), *parsed)
        << text;
  }
}

TEST(ShardingTest, Masks) {
  const Sharding sharding =
      *Sharding::Parse("{data},{model:1} unreduced(sum){model:0}", DataModelGrid());
  EXPECT_EQ(sharding.DimAxes(), 0b0101u);
  EXPECT_EQ(sharding.UnreducedAxes(), 0b0010u);
  EXPECT_EQ(sharding.UsedAxes(), 0b0111u);
  EXPECT_TRUE(sharding.IsUnreduced());
  EXPECT_FALSE(sharding.IsReplicated());
  EXPECT_EQ(sharding.Reduced().ToString(DataModelGrid()), "{data},{model:1}");
  EXPECT_TRUE(Sharding::Open(3).IsReplicated());
}

TEST(ShardingTest, ManualAxes) {
  const Sharding sharding = *Sharding::Parse("{data},{} manual{model:1,model:0}", DataModelGrid());
  EXPECT_EQ(sharding.ToString(DataModelGrid()), "{data},{} manual{model:0,model:1}");
  EXPECT_EQ(sharding.ManualAxes(), 0b0110u);
  EXPECT_EQ(sharding.UsedAxes(), 0b0111u);
  EXPECT_EQ(sharding.Reduced(), sharding);
  EXPECT_FALSE(Sharding::Parse("manual{model}", DataModelGrid())->IsReplicated());
  EXPECT_FALSE(sharding == *Sharding::Parse("{data},{}", DataModelGrid()));
  EXPECT_EQ(ShardingError("{data} manual{data}"),
            "sharding {data} manual{data} uses axis 'data' twice; an axis shards one dimension "
            "only");
}

TEST(ShardingTest, SamePlacementIgnoresOpenness) {
  const Sharding open = *Sharding::Parse("{data,?},{?}", DataModelGrid());
  const Sharding closed = *Sharding::Parse("{data},{}", DataModelGrid());
  EXPECT_FALSE(open == closed);
  EXPECT_TRUE(open.SamePlacement(closed));
  EXPECT_EQ(open.Closed(), closed);
  EXPECT_FALSE(closed.SamePlacement(*Sharding::Parse("{},{data}", DataModelGrid())));
}

TEST(ShardingTest, KindsHaveNames) {
  for (int k = 0; k < 6; ++k) {
    const auto kind = static_cast<ReduceKind>(k);
    EXPECT_EQ(*ParseReduceKind(ReduceKindName(kind)), kind);
  }
}

}  // namespace
}  // namespace spmd
