// SPDX-License-Identifier: Apache-2.0
#include "csrc/cost/op.h"

#include <vector>

#include "csrc/rules/registry.h"
#include "gtest/gtest.h"

namespace spmd::cost {
namespace {

class OpSecondsTest : public testing::Test {
 protected:
  // Seconds of a product [m,k]·[k,n] in f32 with the factors m, k, n divided into `shards`.
  double Mm(int64_t m, int64_t k, int64_t n, std::vector<int64_t> shards) {
    const TensorType x{DType::kF32, {m, k}}, w{DType::kF32, {k, n}};
    const Attributes none;
    rules::OpCall call;
    call.op = "aten::mm";
    call.operands = {&x, &w};
    call.attributes = &none;
    call.results = {{DType::kF32, {m, n}}};
    const rules::Rule* rule = rules::Find(call.op);
    return OpSeconds(*rules::FactorsOf(*rule, call), rule, call, shards, machine_);
  }

  machine::Machine machine_ = {.flops = 1e6, .memory_bandwidth = 1e9};
};

TEST_F(OpSecondsTest, ComputeBoundWorkIsDividedByTheCut) {
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, {1, 1, 1}), 2 * 64 * 32 * 16 / 1e6);
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, {4, 1, 1}), 2 * 16 * 32 * 16 / 1e6);
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, {2, 2, 2}), 2 * 32 * 16 * 8 / 1e6);
}

TEST_F(OpSecondsTest, TheLargestTileOfAnUnevenCutCounts) {
  EXPECT_DOUBLE_EQ(Mm(10, 32, 16, {4, 1, 1}), 2 * 3 * 32 * 16 / 1e6);
}

TEST_F(OpSecondsTest, TrafficCountsWhatEachDeviceHolds) {
  machine_.flops = 1e15;
  machine_.memory_bandwidth = 1e3;
  EXPECT_DOUBLE_EQ(Mm(64, 32, 16, {4, 1, 1}), 4 * (16 * 32 + 32 * 16 + 16 * 16) / 1e3);
}

TEST_F(OpSecondsTest, PaddedRowsAndColumnsArePaidFor) {
  machine_.tile_rows = 8;
  machine_.tile_columns = 128;
  EXPECT_DOUBLE_EQ(Mm(3, 128, 128, {1, 1, 1}), Mm(8, 128, 128, {1, 1, 1}));
  EXPECT_DOUBLE_EQ(Mm(8, 128, 128, {1, 1, 2}), Mm(8, 128, 128, {1, 1, 1}));
}

TEST_F(OpSecondsTest, AnOpWithoutARuleMovesItsBytes) {
  const TensorType x{DType::kF32, {1000}};
  const Attributes none;
  rules::OpCall call;
  call.op = "mylib::op";
  call.operands = {&x};
  call.attributes = &none;
  call.results = {x};
  EXPECT_DOUBLE_EQ(OpSeconds(rules::WholeFactors(call), nullptr, call, {}, machine_),
                   8000 / machine_.memory_bandwidth);
}

}  // namespace
}  // namespace spmd::cost
