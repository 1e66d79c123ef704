// SPDX-License-Identifier: Apache-2.0
// Products that are added to partial sums (csrc/program/one_place/fuse_sums.h) have the right
// values.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/cpp/program/one_place/products_and_sums.h"
#include "tests/cpp/runtime/run_text.h"

namespace spmd::runtime {
namespace {

std::string With(std::vector<std::pair<std::string, std::string>> changes) {
  return absl::StrReplaceAll(kProductsAndSums, changes);
}

TEST(FusedSums, AreTheSumsOfTheTwoOps) {
  for (const bool deduplicate : {true, false}) {
    // Seven columns over four devices: the last has one; one column: three devices have none.
    for (const int64_t n : {7, 1}) {
      const at::Tensor g = at::randn({6, 8}), w = at::randn({8, 10}), h = at::randn({6, n}),
                       v = at::randn({n, 10});
      const std::string text = With({{"f32[6,7]", absl::StrCat("f32[6,", n, "]")},
                                     {"f32[7,10]", absl::StrCat("f32[", n, ",10]")},
                                     // What was added to is needed once more.
                                     {"return %5",
                                      "  %6: f32[6,10] @m {data},{} = all_reduce(%2) "
                                      "{model}\n  return %5, %6"}});
      const auto results = RunText(text, {g, w, h, v}, {.deduplicate = deduplicate});
      ASSERT_EQ(results.size(), 2u);
      const at::Tensor first = g.matmul(w) + h.matmul(v);
      EXPECT_TRUE(at::allclose(results[0], first + g.matmul(w), 1e-5, 1e-5));
      EXPECT_TRUE(at::allclose(results[1], first, 1e-5, 1e-5));
    }
  }
}

TEST(FusedSums, OfMoreDimensions) {
  const at::Tensor g = at::randn({3, 2, 8}), w = at::randn({8, 10}), h = at::randn({3, 2, 7}),
                   v = at::randn({7, 10});
  const std::string text = With({{"f32[6,8] @m {data},", "f32[3,2,8] @m {},{data},"},
                                 {"f32[6,7] @m {data},", "f32[3,2,7] @m {},{data},"},
                                 {"f32[6,10] @m {data},", "f32[3,2,10] @m {},{data},"}});
  const auto results = RunText(text, {g, w, h, v}, {.deduplicate = true});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(at::allclose(results[0], g.matmul(w) * 2 + h.matmul(v), 1e-5, 1e-5));
}

}  // namespace
}  // namespace spmd::runtime
