// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace spmd {
namespace {

std::atomic<int> freed;
void CountAndFree(void* memory) {
  ++freed;
  ::operator delete(memory);
}
using Blocks = BlockList<&CountAndFree, 4>;
void* Block() { return ::operator new(64); }

TEST(BlockList, GivesBackTheLastOneFirst) {
  std::thread([] {
    EXPECT_EQ(Blocks::Take(), nullptr);
    void* const first = Block();
    void* const second = Block();
    Blocks::Give(first);
    Blocks::Give(second);
    EXPECT_EQ(Blocks::Take(), second);
    EXPECT_EQ(Blocks::Take(), first);
    EXPECT_EQ(Blocks::Take(), nullptr);
    ::operator delete(first);
    ::operator delete(second);
  }).join();
}

TEST(BlockList, FreesWhatIsTooMuchAtOnceAndTheRestWhenTheThreadEnds) {
  freed = 0;
  std::thread([] {
    for (int k = 0; k < 6; ++k) Blocks::Give(Block());
    EXPECT_EQ(freed, 2);
  }).join();
  EXPECT_EQ(freed, 6);
}

// An object of a thread whose destructor gives a block back after the list has ended.
struct Late {
  ~Late() { Blocks::Give(Block()); }
};

TEST(BlockList, FreesWhatComesAfterItsEnd) {
  freed = 0;
  std::thread([] {
    static thread_local const Late late;  // noted before the list: ends after it
    static_cast<void>(&late);
    Blocks::Give(Block());
  }).join();
  EXPECT_EQ(freed, 2);
}

struct One : Pooled<One> {
  int64_t number = 1;
};
struct Other : Pooled<Other> {
  char bytes[200] = {};
};

TEST(Pooled, EachClassHasItsOwnMemory) {
  if (kMostBlocks == 0) GTEST_SKIP() << "nothing is kept under this sanitizer";
  auto* const one = new One;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(one) % kCacheLineBytes, 0u);
  delete one;
  auto* const other = new Other;
  EXPECT_NE(static_cast<void*>(other), static_cast<void*>(one));
  auto* const again = new One;
  EXPECT_EQ(again, one);
  EXPECT_EQ(again->number, 1);
  delete again;
  delete other;
}

TEST(Pooled, MemoryGoesToTheThreadThatDrops) {
  if (kMostBlocks == 0) GTEST_SKIP() << "nothing is kept under this sanitizer";
  std::vector<One*> made;
  for (int k = 0; k < 100; ++k) made.push_back(new One);
  const std::set<One*> places(made.begin(), made.end());
  std::thread([&] {
    for (One* one : made) delete one;
    auto* const next = new One;
    EXPECT_TRUE(places.contains(next));
    delete next;
  }).join();
}

}  // namespace
}  // namespace spmd
