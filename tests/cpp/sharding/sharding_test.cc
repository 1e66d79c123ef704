// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/sharding.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/hash/hash.h"
#include "tests/cpp/sharding/random_layout.h"

namespace spmd {
namespace {

const Grid& DataModel() {
  static const GridPtr grid = *Grid::Parse("[data=2, model=8]");
  return *grid;
}

std::string ErrorOf(absl::string_view text) {
  const auto sharding = Sharding::Parse(text, DataModel());
  EXPECT_EQ(sharding.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(sharding.status().message());
}

TEST(ShardingTest, TextIsCanonical) {
  for (const char* text : {"", "{}", "{data},{model:0,model:1}", "{data chunk=6},{}",
                           "{?},{model,?}", "{model,? chunk=3}", "{},{} unreduced(sum){data}",
                           "unreduced(max){data,model}", "{model:2,data},{model:0}"}) {
    const auto sharding = Sharding::Parse(text, DataModel());
    ASSERT_TRUE(sharding.ok()) << sharding.status();
    EXPECT_EQ(sharding->ToString(DataModel()), text);
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
  const auto sharding = Sharding::Parse(in, DataModel());
  ASSERT_TRUE(sharding.ok());
  EXPECT_EQ(sharding->rank(), 2);
  EXPECT_EQ(in.rest(), ", %2: f32[]");
}

TEST(ShardingTest, ErrorsShowTheOffendingText) {
  EXPECT_EQ(ErrorOf("{modle}"),
            "grid [data=2, model=8] has no axis 'modle'; did you mean 'model'?");
  EXPECT_EQ(ErrorOf("{data},{data}"),
            "sharding {data},{data} uses axis 'data' twice; an axis shards one dimension only");
  EXPECT_EQ(
      ErrorOf("{model:1},{model}"),
      "sharding {model:1},{model} uses axis 'model:1' twice; an axis shards one dimension only");
  EXPECT_EQ(ErrorOf("{data} unreduced(sum){data}"),
            "sharding {data} unreduced(sum){data} uses axis 'data' twice; an axis cuts one "
            "dimension only");
  EXPECT_EQ(ErrorOf("{data"), "expected ',' at the end of '{data'");
  EXPECT_EQ(ErrorOf("{data},"), "expected the end at ',' in '{data},'");
  EXPECT_EQ(ErrorOf("{data chunk=0}"),
            "expected a chunk of at least 1, after axes at 'chunk=0}' in '{data chunk=0}'");
  EXPECT_EQ(ErrorOf("{chunk=4}"),
            "expected a chunk of at least 1, after axes at 'chunk=4}' in '{chunk=4}'");
  EXPECT_EQ(ErrorOf("{} unreduced(mean){data}"),
            "'mean' is no kind of reduction; there are sum, prod, max, min, and, or");
  EXPECT_EQ(ErrorOf("{} unreduced(sum){}"), "expected an axis at '}' in '{} unreduced(sum){}'");
}

TEST(ShardingTest, AnyTextIsParsedOrRefused) {
  std::mt19937 rng(22);
  const std::string alphabet = "{}{},data,model:012?? unreduced(sum)chunk=";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = rng() % 15; n > 0; --n) text.push_back(alphabet[rng() % alphabet.size()]);
    const auto parsed = Sharding::Parse(text, DataModel());
    if (!parsed.ok()) continue;
    EXPECT_EQ(*Sharding::Parse(parsed->ToString(DataModel()), DataModel()), *parsed) << text;
  }
}

TEST(ShardingTest, Masks) {
  const Sharding sharding =
      *Sharding::Parse("{data},{model:1} unreduced(sum){model:0}", DataModel());
  EXPECT_EQ(sharding.DimAxes(), 0b0101u);
  EXPECT_EQ(sharding.UnreducedAxes(), 0b0010u);
  EXPECT_EQ(sharding.UsedAxes(), 0b0111u);
  EXPECT_TRUE(sharding.IsUnreduced());
  EXPECT_FALSE(sharding.IsReplicated());
  EXPECT_EQ(sharding.Reduced().ToString(DataModel()), "{data},{model:1}");
  EXPECT_TRUE(Sharding::Open(3).IsReplicated());
}

TEST(ShardingTest, SamePlacementIgnoresOpenness) {
  const Sharding open = *Sharding::Parse("{data,?},{?}", DataModel());
  const Sharding closed = *Sharding::Parse("{data},{}", DataModel());
  EXPECT_FALSE(open == closed);
  EXPECT_TRUE(open.SamePlacement(closed));
  EXPECT_EQ(open.Closed(), closed);
  EXPECT_FALSE(closed.SamePlacement(*Sharding::Parse("{},{data}", DataModel())));
}

TEST(ShardingTest, KindsHaveNames) {
  for (int k = 0; k < 6; ++k) {
    const auto kind = static_cast<ReduceKind>(k);
    EXPECT_EQ(*ParseReduceKind(ReduceKindName(kind)), kind);
  }
}

}  // namespace
}  // namespace spmd
