// SPDX-License-Identifier: Apache-2.0
// The same calls with tiles on the host, which are their own copies, and on a GPU where there is
// one.
#include "csrc/runtime/run_on_host.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spmd::runtime {
namespace {

class RunOnHostTest : public testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (device.is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "there is no GPU";
  }
  at::Tensor There(const at::Tensor& t) const { return t.to(device); }
  torch::jit::Stack Run(const std::string& op, torch::jit::Stack stack) const {
    const size_t dot = op.find('.');
    const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
    RunOnHost(
        c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str()),
        stack, device);
    return stack;
  }

  const c10::Device device = c10::Device(GetParam(), GetParam() == c10::kCPU ? -1 : 0);
};

TEST_P(RunOnHostTest, ResultsAreWhereTheTilesAre) {
  const at::Tensor x = at::randn({4, 5});
  const torch::jit::Stack sorted = Run("aten::sort", {There(x), 1, false});
  ASSERT_EQ(sorted.size(), 2u);
  const auto [values, indices] = at::sort(x, 1, false);
  EXPECT_EQ(sorted[0].toTensor().device(), device);
  EXPECT_TRUE(at::equal(sorted[0].toTensor().cpu(), values));
  EXPECT_TRUE(at::equal(sorted[1].toTensor().cpu(), indices));
}

TEST_P(RunOnHostTest, AnArgumentIsOverwritten) {
  const at::Tensor x = There(at::ones({3})), y = There(at::arange(3));
  const torch::jit::Stack sum = Run("aten::add_.Tensor", {x, y, 2});
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_TRUE(sum[0].toTensor().is_same(x));
  EXPECT_TRUE(at::equal(x.cpu(), at::tensor({1.0F, 3.0F, 5.0F})));
  // The same tensor twice.
  Run("aten::add_.Tensor", {x, x, 1});
  EXPECT_TRUE(at::equal(x.cpu(), at::tensor({2.0F, 6.0F, 10.0F})));
}

TEST_P(RunOnHostTest, ListsOfTensors) {
  const at::Tensor x = at::randn({2, 3}), y = at::randn({1, 3});
  const std::vector<at::Tensor> both = {There(x), There(y)};
  const torch::jit::Stack joined = Run("aten::cat", {both, 0});
  EXPECT_TRUE(at::equal(joined[0].toTensor().cpu(), at::cat({x, y})));
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(std::nullopt);
  indices.push_back(There(at::tensor({2, 0})));
  const torch::jit::Stack chosen = Run("aten::index.Tensor", {There(x), indices});
  EXPECT_EQ(chosen[0].toTensor().device(), device);
  EXPECT_TRUE(at::equal(chosen[0].toTensor().cpu(), x.index_select(1, at::tensor({2, 0}))));
}

TEST_P(RunOnHostTest, AFailedOpLeavesItsArguments) {
  const at::Tensor x = There(at::ones({3}));
  EXPECT_THROW(Run("aten::add_.Tensor", {x, There(at::ones({2})), 1}), c10::Error);
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({3})));
}

INSTANTIATE_TEST_SUITE_P(Devices, RunOnHostTest, testing::Values(c10::kCPU, c10::kCUDA),
                         [](const auto& info) { return c10::DeviceTypeName(info.param, true); });

}  // namespace
}  // namespace spmd::runtime
