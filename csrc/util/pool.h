// SPDX-License-Identifier: Apache-2.0
// Memory of objects that are made and dropped all the time: kept for the next one on each thread.
//
//   struct Value : Pooled<Value> { ... };
//   auto* a = new Value;  delete a;  auto* b = new Value;  // b is where a was
#pragma once

#include <cstddef>
#include <new>

#include "csrc/util/prefetch.h"

namespace spmd {

inline constexpr std::align_val_t kCacheLine{kCacheLineBytes};

// None under the address sanitizer: it must see objects end.
#ifdef __SANITIZE_ADDRESS__
inline constexpr size_t kMostBlocks = 0;
#else
inline constexpr size_t kMostBlocks = 4096;
#endif

// Up to `kMost` blocks of one size, a list through the blocks themselves, last come first served.
// One per thread, freed when it ends. Requires: a block is no smaller than a pointer.
template <void (*kFree)(void*), size_t kMost = kMostBlocks>
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
  // Frees the block where the list is full, and where the thread is ending.
  static void Give(void* memory) {
    List& list = t_list;
    if (list.count == kMost) return kFree(memory);
    if (!list.freed_at_end) FreeAtEnd();
    auto* const block = static_cast<Block*>(memory);
    block->next = list.first;
    list.first = block;
    ++list.count;
  }

 private:
  struct Block {
    Block* next;
  };
  // Together: each of a thread's variables is looked up by a call. Without a destructor: it would
  // be asked for each time whether it has been noted.
  struct List {
    Block* first = nullptr;
    size_t count = 0;
    bool freed_at_end = false;
  };
  struct End {
    ~End() {
      while (void* const block = Take()) kFree(block);
      t_list.count = kMost;
    }
  };
  static void FreeAtEnd() {
    static thread_local const End end;
    static_cast<void>(&end);
    t_list.freed_at_end = true;
  }
  static inline thread_local List t_list;
};

// Base class of T that gives it such memory, aligned to a line of the cache. T is final in all but
// name: derived classes need the same size.
template <typename T>
class Pooled {
 public:
  static void* operator new(size_t bytes) {
    static_assert(sizeof(T) >= sizeof(void*), "the list goes through the blocks");
    void* const memory = BlockList<&Free>::Take();
    return memory != nullptr ? memory : ::operator new(bytes, kCacheLine);
  }
  static void operator delete(void* memory) { BlockList<&Free>::Give(memory); }

 private:
  // One for each T, and so a list for each.
  static void Free(void* memory) { ::operator delete(memory, kCacheLine); }
};

}  // namespace spmd
