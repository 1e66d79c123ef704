// SPDX-License-Identifier: Apache-2.0
// Memory of objects that are made and dropped with every op: kept for the next one on each thread.
#pragma once

#include <cstddef>
#include <new>

namespace spmd::trace {

// Up to `kMost` blocks of one size, a list through the blocks themselves. One per thread; what a
// thread still has when it ends is lost, which is no more than that.
template <typename Tag, size_t kMost = 4096>
class BlockList {
 public:
  // Null when there is none.
  static void* Take() {
    Block* const block = t_first;
    if (block == nullptr) return nullptr;
    t_first = block->next;
    --t_count;
    return block;
  }
  // False when the list is full.
  static bool Give(void* memory) {
    if (t_count == kMost) return false;
    auto* const block = static_cast<Block*>(memory);
    block->next = t_first;
    t_first = block;
    ++t_count;
    return true;
  }

 private:
  struct Block {
    Block* next;
  };
  static inline thread_local Block* t_first = nullptr;
  static inline thread_local size_t t_count = 0;
};

// Base class of T that gives it such memory. T is final in all but name: derived classes need the
// same size.
template <typename T>
class Pooled {
 public:
  static void* operator new(size_t bytes) {
    void* const memory = BlockList<T>::Take();
    return memory != nullptr ? memory : ::operator new(bytes);
  }
  static void operator delete(void* memory) {
    if (!BlockList<T>::Give(memory)) ::operator delete(memory);
  }
};

}  // namespace spmd::trace
