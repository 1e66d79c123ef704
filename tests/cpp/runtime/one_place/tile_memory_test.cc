// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/tile_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace spmd::runtime {
namespace {

class TileMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TileMemory::Install()) GTEST_SKIP() << "too few addresses";
    TileMemory::Trim();
    before_ = TileMemory::GetStats().in_use;
  }
  int64_t InUse() const { return TileMemory::GetStats().in_use - before_; }

 private:
  int64_t before_ = 0;
};

at::Tensor Bytes(int64_t n) { return at::empty({n}, at::kByte); }

TEST_F(TileMemoryTest, TensorsOfAllSizesAreCountedWhileTheyLive) {
  const TileMemory::Usage before = TileMemory::GetUsage();
  at::Tensor small, block;
  {
    const TileMemory::Scope scope;
    small = at::empty({100});
    block = at::empty({1 << 20});
  }
  const at::Tensor outside = at::empty({1 << 20});
  TileMemory::Usage now = TileMemory::GetUsage();
  EXPECT_EQ(now.tensors - before.tensors, 2);
  EXPECT_GE(now.bytes - before.bytes, 400 + (4 << 20));
  EXPECT_LT(now.bytes - before.bytes, 4096 + (4 << 20));
  EXPECT_GE(now.peak_bytes, now.bytes);
  small = block = at::Tensor();
  now = TileMemory::GetUsage();
  EXPECT_EQ(now.bytes, before.bytes);
  EXPECT_EQ(now.tensors, before.tensors);
  EXPECT_EQ(now.tensors_ever - before.tensors_ever, 2);
  EXPECT_GT(now.peak_bytes, now.bytes);
  TileMemory::ResetPeak();
  EXPECT_EQ(TileMemory::GetUsage().peak_bytes, now.bytes);
}

TEST_F(TileMemoryTest, ABlockIsUsedAgain) {
  const TileMemory::Scope scope;
  at::Tensor a = Bytes(300'000);
  const void* const block = a.data_ptr();
  a.fill_(1);
  EXPECT_GE(InUse(), 300'000);
  a.reset();
  EXPECT_EQ(InUse(), 0);
  EXPECT_GE(TileMemory::GetStats().kept, 300'000);
  const at::Tensor b = Bytes(290'000);  // of the same size class
  EXPECT_EQ(b.data_ptr(), block);
  const at::Tensor c = Bytes(300'000);
  EXPECT_NE(c.data_ptr(), block);
}

TEST_F(TileMemoryTest, BlocksHoldWhatTheyAreAskedForAndDoNotOverlap) {
  const TileMemory::Scope scope;
  std::vector<at::Tensor> tensors;
  for (int64_t bytes = 64 << 10; bytes < int64_t{40} << 20; bytes = bytes * 21 / 20 + 1) {
    for (int copy = 0; copy < 2; ++copy) {
      tensors.push_back(Bytes(bytes).fill_(static_cast<int>(tensors.size() % 251)));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % 64, 0u);
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(tensors[i].eq(static_cast<int>(i % 251)).all().item<bool>()) << i;
  }
}

TEST_F(TileMemoryTest, OnlyLargeTensorsOfThreadsInScope) {
  const at::Tensor outside = Bytes(300'000);
  EXPECT_EQ(InUse(), 0);
  const TileMemory::Scope scope;
  const at::Tensor small = Bytes(1000), none = Bytes(0);
  EXPECT_EQ(InUse(), 0);
  std::thread([] { Bytes(300'000).fill_(1); }).join();
  EXPECT_EQ(TileMemory::GetStats().kept, 0);
}

TEST_F(TileMemoryTest, TensorsOutliveTheScopeAndDieOnAnyThread) {
  at::Tensor kept;
  {
    const TileMemory::Scope scope;
    kept = at::arange(100'000);
  }
  EXPECT_EQ(kept[99'999].item<int64_t>(), 99'999);
  std::thread([tensor = std::move(kept)]() mutable { tensor.reset(); }).join();
  EXPECT_EQ(InUse(), 0);
}

TEST_F(TileMemoryTest, PagesAreGivenBack) {
  const TileMemory::Scope scope;
  {
    const at::Tensor block = Bytes(int64_t{1} << 20).fill_(7);
  }
  EXPECT_GT(TileMemory::GetStats().kept, 0);
  TileMemory::Trim();
  EXPECT_EQ(TileMemory::GetStats().kept, 0);
  // The same addresses, new pages: zeros but for the first and the last, which neighbours may
  // share.
  const at::Tensor again = Bytes(int64_t{1} << 20);
  EXPECT_EQ(again.slice(0, 1 << 17, 7 << 17).max().item<int>(), 0);
  // Other sizes one after the other: no more is kept than is in use at once.
  for (int64_t bytes = 1 << 20; bytes < int64_t{64} << 20; bytes = bytes * 5 / 4) Bytes(bytes);
  const TileMemory::Stats stats = TileMemory::GetStats();
  EXPECT_LE(2 * (stats.in_use + stats.kept), 3 * stats.most_in_use);
}

TEST_F(TileMemoryTest, WhatIsFreedWhileNothingRunsGoesBackAtOnce) {
  at::Tensor block;
  {
    const TileMemory::Scope scope;
    block = Bytes(int64_t{1} << 20);
  }
  TileMemory::Trim();
  block.reset();
  EXPECT_EQ(TileMemory::GetStats().kept, 0);
}

TEST_F(TileMemoryTest, OtherSizesTakeThePlaceOfThoseBefore) {
  const TileMemory::Scope scope;
  for (const int64_t bytes : {3 << 20, 4 << 20, 5 << 20, 6 << 20}) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(Bytes(bytes));
      const TileMemory::Stats stats = TileMemory::GetStats();
      EXPECT_LE(2 * (stats.in_use + stats.kept), 3 * stats.most_in_use);
    }
  }
}

TEST_F(TileMemoryTest, TensorsOfOtherAllocationsResizeAndAreFreed) {
  at::Tensor grown = Bytes(10);
  const TileMemory::Scope scope;
  grown.resize_({300'000}).fill_(3);
  EXPECT_GT(InUse(), 0);
  grown.resize_({600'000});
  EXPECT_EQ(grown[299'999].item<int>(), 3);
  grown.reset();
  EXPECT_EQ(InUse(), 0);
}

TEST_F(TileMemoryTest, AForkedChildMayFreeWhileAnotherThreadAllocates) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    const TileMemory::Scope scope;
    while (!stop) Bytes(100'000);
  });
  at::Tensor held;
  {
    const TileMemory::Scope scope;
    held = Bytes(100'000);
  }
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a lock that nobody gives back
      held.reset();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace spmd::runtime
