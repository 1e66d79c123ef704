// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "csrc/trace/op/words.h"

namespace spmd::trace {
namespace {

Hash128 Of(const std::vector<uint64_t>& values) {
  Hash128 hash;
  for (const uint64_t v : values) hash.Mix(v);
  return hash;
}

Hash128 OfLists(const std::vector<std::vector<int64_t>>& lists) {
  Hash128 hash;
  for (const auto& list : lists) hash.Mix(absl::MakeConstSpan(list));
  return hash;
}

Hash128 OfText(const std::vector<std::string>& texts) {
  Hash128 hash;
  for (const std::string& text : texts) hash.MixText(text);
  return hash;
}

Hash128 OfValue(const c10::IValue& v, bool value = true) {
  Hash128 hash;
  MixIValue(hash, v, value);
  return hash;
}

TEST(HashTest, EqualSequencesAreEqualAndTheOrderCounts) {
  EXPECT_EQ(Of({1, 2, 3}), Of({1, 2, 3}));
  EXPECT_FALSE(Of({1, 2, 3}) == Of({1, 3, 2}));
  EXPECT_FALSE(Of({1, 2}) == Of({1, 2, 0}));
  EXPECT_FALSE(Of({}) == Of({0}));
}

TEST(HashTest, ListsAndTextsCountWhereTheyEnd) {
  EXPECT_FALSE(OfLists({{1, 2}, {3}}) == OfLists({{1}, {2, 3}}));
  EXPECT_FALSE(OfLists({{}, {1}}) == OfLists({{1}, {}}));
  EXPECT_FALSE(OfText({"ab", "c"}) == OfText({"a", "bc"}));
  EXPECT_EQ(OfText({"a longer text than eight bytes"}), OfText({"a longer text than eight bytes"}));
}

// Both halves tell small numbers and their pairs apart.
TEST(HashTest, NoTwoOfManySmallSequencesAreEqual) {
  absl::flat_hash_set<uint64_t> high, low;
  for (uint64_t a = 0; a < 300; ++a) {
    for (uint64_t b = 0; b < 300; ++b) {
      const Hash128 hash = Of({a, b});
      EXPECT_TRUE(high.insert(hash.hi()).second) << a << ", " << b;
      EXPECT_TRUE(low.insert(hash.lo()).second) << a << ", " << b;
    }
  }
}

TEST(HashTest, KindsOfValuesDiffer) {
  const std::vector<c10::IValue> values = {
      c10::IValue(),    1,   1.0,  true, "1", c10::complex<double>(1, 0), std::vector<int64_t>{1},
      c10::IValue(2.0), 2.5, false};
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(OfValue(values[i]), OfValue(values[i]));
    for (size_t j = 0; j < i; ++j) {
      EXPECT_FALSE(OfValue(values[i]) == OfValue(values[j])) << values[i] << " and " << values[j];
    }
  }
}

TEST(HashTest, WithoutValuesOnlyKindsCount) {
  EXPECT_EQ(OfValue(1.0, false), OfValue(2.0, false));
  EXPECT_EQ(OfValue(1, false), OfValue(2, false));
  EXPECT_FALSE(OfValue(1, false) == OfValue(1.0, false));
}

// Words are equal for equal calls only, whatever absl's hash of them is.
TEST(WordsTest, KeepAllThatWasMixedIn) {
  const auto of = [](const c10::IValue& v, bool value = true) {
    Words words;
    MixIValue(words, v, value);
    return words;
  };
  EXPECT_EQ(of(std::vector<int64_t>{1, 2}), of(std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(of(std::vector<int64_t>{1, 2}) == of(std::vector<int64_t>{2, 1}));
  EXPECT_FALSE(of("a longer text") == of("a longer test"));
  EXPECT_EQ(of(1.0, false), of(2.0, false));
  absl::flat_hash_set<Words> seen;
  for (int64_t n = 0; n < 1000; ++n) EXPECT_TRUE(seen.insert(of(n)).second);
}

}  // namespace
}  // namespace spmd::trace
