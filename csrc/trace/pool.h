// SPDX-License-Identifier: Apache-2.0
// Memory of objects that are made and dropped with every op: kept for the next one on each thread.
#pragma once

#include <cstddef>
#include <new>

#include "csrc/trace/prefetch.h"

namespace spmd::trace {

inline constexpr std::align_val_t kCacheLine{kCacheLineBytes};

// Up to `kMost` blocks of one size, a list through the blocks themselves. One per thread; what a
// thread still has when it ends is lost, which is no more than that.
template <typename Tag, size_t kMost = 4096>
class BlockList {
 public:
  // Null when there is none.
  static void* Take() {
    List& list = t_list;
    Block* const block = list.first;
    if (block == nullptr) return nullptr;
    list.first = block->next;
    --list.count;
    return block;
  }
  // False when the list is full.
  static bool Give(void* memory) {
    List& list = t_list;
    if (list.count == kMost) return false;
    auto* const block = static_cast<Block*>(memory);
    block->next = list.first;
    list.first = block;
    ++list.count;
    return true;
  }

 private:
  struct Block {
    Block* next;
  };
  // Together: each of a thread's variables is looked up by a call.
  struct List {
    Block* first = nullptr;
    size_t count = 0;
  };
  static inline thread_local List t_list;
};

// Base class of T that gives it such memory, aligned to a line of the cache. T is final in all but
// name: derived classes need the same size.
template <typename T>
class Pooled {
 public:
  static void* operator new(size_t bytes) {
    void* const memory = BlockList<T>::Take();
    return memory != nullptr ? memory : ::operator new(bytes, kCacheLine);
  }
  static void operator delete(void* memory) {
    if (!BlockList<T>::Give(memory)) ::operator delete(memory, kCacheLine);
  }
};

}  // namespace spmd::trace
