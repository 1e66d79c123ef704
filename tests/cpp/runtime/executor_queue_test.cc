// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/executor_queue.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cpp/runtime/tiles.h"

namespace spmd::runtime {
namespace {

constexpr const char* kAddOne = R"(
mesh @m [a=2]
program {
  %x: f32[6,4] @m {a},{} donated
  %0: f32[6,4] @m {a},{} = call aten::add.Scalar(%x, other=1.0) updates(0)
  free %x
  return %0 -> %x
}
)";
// Fails when an index is not in range.
constexpr const char* kSelect = R"(
mesh @m [a=2]
program {
  %x: f32[6,4] @m {},{a}
  %i: i64[2] @m {}
  %0: f32[2,4] @m {},{a} = call aten::index_select(%x, %i, dim=0)
  return %0
}
)";

std::shared_ptr<LoadedProgram> LoadProgram(const char* text) {
  auto loaded = LoadedProgram::Load(*program::Program::Parse(text), *MakeBackend("cpu", {}));
  TORCH_CHECK(loaded.ok(), loaded.status().ToString());
  return *loaded;
}

TiledTensorPtr Input(const LoadedProgram& program, int input, const at::Tensor& host) {
  return Upload(host, program.program().LayoutOf(program.program().inputs[input].value),
                **MakeBackend("cpu", {}));
}

class ExecutorQueueTest : public testing::TestWithParam<bool> {};

TEST_P(ExecutorQueueTest, AChainOfRuns) {
  ExecutorQueue queue(GetParam(), /*bound=*/3);
  const auto program = LoadProgram(kAddOne);
  const at::Tensor x = at::randn({6, 4});
  const TiledTensorPtr start = Input(*program, 0, x);
  PendingTiles value{start, nullptr, 0};
  for (int i = 0; i < 20; ++i) {
    value = {nullptr, queue.Enqueue(program, {{std::move(value), /*donate=*/true}}, {}), 0};
  }
  const auto result = value.run->Result(0, /*take=*/false);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(at::allclose(Assemble(**result), x.add(20)));
  EXPECT_TRUE(at::equal(Assemble(*start), x)) << "somebody else's tiles were overwritten";
  queue.WaitForAll();
  EXPECT_TRUE(value.run->done());
}

TEST_P(ExecutorQueueTest, AFailureReachesTheRunsThatNeedIt) {
  ExecutorQueue queue(GetParam());
  const auto select = LoadProgram(kSelect), add = LoadProgram(kAddOne);
  const TiledTensorPtr x = Input(*select, 0, at::randn({6, 4}));
  const PendingRunPtr failing =
      queue.Enqueue(select, {{{x}}, {{Input(*select, 1, at::full({2}, 9, at::kLong))}}}, {});
  const PendingRunPtr next = queue.Enqueue(add, {{{nullptr, failing, 0}, true}}, {});
  const PendingRunPtr other = queue.Enqueue(add, {{{Input(*add, 0, at::zeros({6, 4}))}, true}}, {});
  EXPECT_EQ(failing->Wait().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(next->Wait(), failing->Wait());
  EXPECT_TRUE(other->Wait().ok());
  EXPECT_EQ(failing->TakeBackArguments()[0].value, x);
  EXPECT_EQ(FailedOp(failing->Wait()), "aten::index_select");
}

TEST_P(ExecutorQueueTest, WhatAFailedRunWasGivenByOthersCanBeTakenBack) {
  ExecutorQueue queue(GetParam());
  const auto select = LoadProgram(kSelect), add = LoadProgram(kAddOne);
  const TiledTensorPtr bad = Input(*select, 1, at::full({2}, 9, at::kLong));
  const PendingRunPtr failing =
      queue.Enqueue(select, {{{Input(*select, 0, at::randn({6, 4}))}}, {{bad}}}, {});
  const PendingRunPtr good = queue.Enqueue(add, {{{Input(*add, 0, at::zeros({6, 4}))}, true}}, {});
  const PendingRunPtr both =
      queue.Enqueue(select, {{{nullptr, failing, 0}}, {{nullptr, good, 0}, true}}, {});
  EXPECT_EQ(both->cause(), failing);
  const auto left = both->TakeBackArguments();
  EXPECT_EQ(left[0].value, nullptr);
  ASSERT_NE(left[1].value, nullptr);
  EXPECT_TRUE(at::equal(Assemble(*left[1].value), at::ones({6, 4})));
}

TEST_P(ExecutorQueueTest, AnAmendedResultCountsAlthoughTheRunFailed) {
  ExecutorQueue queue(GetParam());
  const auto select = LoadProgram(kSelect), add = LoadProgram(kAddOne);
  const TiledTensorPtr bad = Input(*select, 1, at::full({2}, 9, at::kLong));
  const PendingRunPtr failing =
      queue.Enqueue(select, {{{Input(*select, 0, at::randn({6, 4}))}}, {{bad}}}, {});
  EXPECT_FALSE(failing->Result(0, /*take=*/false).ok());
  failing->Amend(0, Input(*add, 0, at::zeros({6, 4})));
  const PendingRunPtr next = queue.Enqueue(add, {{{nullptr, failing, 0}, true}}, {});
  const auto result = next->Result(0, /*take=*/false);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(at::equal(Assemble(**result), at::ones({6, 4})));
  EXPECT_FALSE(failing->Wait().ok());
}

// What the callback below has seen, from any thread.
std::mutex seen_mutex;
std::vector<std::string> seen;

std::unique_ptr<at::ObserverContext> See(const at::RecordFunction& function) {
  const std::lock_guard<std::mutex> lock(seen_mutex);
  seen.emplace_back(function.name());
  return nullptr;
}

TEST_P(ExecutorQueueTest, WhatObservesTheCallerSeesItsRuns) {
  ExecutorQueue queue(GetParam());
  const auto program = LoadProgram(kAddOne);
  const auto run = [&] {
    const TiledTensorPtr x = Input(*program, 0, at::zeros({6, 4}));
    seen.clear();
    return queue.Enqueue(program, {{{x}}}, {})->Wait();
  };
  ASSERT_TRUE(run().ok());
  EXPECT_TRUE(seen.empty());
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&See, nullptr));
  ASSERT_TRUE(run().ok());
  // The ops that an instruction calls are part of it.
  EXPECT_EQ(seen, (std::vector<std::string>{"spmd: program", "spmd: aten::add.Scalar"}));
  at::removeCallback(handle);
  ASSERT_TRUE(run().ok());
  EXPECT_TRUE(seen.empty());
  EXPECT_FALSE(Observers::OfThisThread().has_value());
}

TEST_P(ExecutorQueueTest, ShutdownEndsCleanly) {
  const auto program = LoadProgram(kAddOne);
  std::vector<PendingRunPtr> runs;
  {
    ExecutorQueue queue(GetParam(), /*bound=*/100);
    for (int i = 0; i < 50; ++i) {
      runs.push_back(queue.Enqueue(program, {{{Input(*program, 0, at::zeros({6, 4}))}, true}}, {}));
    }
    queue.DropWaiting();
  }
  for (const PendingRunPtr& run : runs) {
    const absl::Status status = run->Wait();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
    if (!status.ok()) {
      EXPECT_NE(run->TakeBackArguments()[0].value, nullptr);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ExecutorQueueTest, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("Inline") : std::string("Thread");
});

}  // namespace
}  // namespace spmd::runtime
