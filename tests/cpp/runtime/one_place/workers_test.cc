// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/workers.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

namespace spmd::runtime {
namespace {

// Threads of this process, once those that are ending have ended.
int64_t Threads(int64_t at_most) {
  int64_t threads = 0;
  for (int tries = 0; tries < 30; ++tries) {
    threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
    if (threads <= at_most) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return threads;
}

void WorkInParallel() { at::zeros({1 << 20}).add_(1); }

TEST(Workers, AreReleasedAndComeBack) {
  const int64_t workers = at::get_num_threads() - 1;
  if (workers == 0) GTEST_SKIP() << "one core";
  ReleaseWorkers();
  const int64_t alone = Threads(1);
  WorkInParallel();
  EXPECT_EQ(Threads(alone), alone + workers);
  ReleaseWorkers();
  ReleaseWorkers();
  EXPECT_EQ(Threads(alone), alone);
  WorkInParallel();
  EXPECT_EQ(Threads(alone), alone + workers);
  ReleaseWorkers();
}

TEST(Workers, NoneAreAskedForByWhoWorksAlone) {
  const int threads = at::get_num_threads();
  std::thread([&] {
    const int64_t before = Threads(1);
    {
      const NoWorkers alone;
      EXPECT_EQ(at::get_num_threads(), 1);
      WorkInParallel();
      at::mm(at::zeros({300, 300}), at::zeros({300, 300}));
      EXPECT_EQ(Threads(before), before);
    }
    EXPECT_EQ(at::get_num_threads(), threads);
  }).join();
  EXPECT_EQ(at::get_num_threads(), threads);
}

}  // namespace
}  // namespace spmd::runtime
