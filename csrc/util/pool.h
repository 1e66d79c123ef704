// SPDX-License-Identifier: Apache-2.0
// Keeps the memory of deleted objects on a list per thread, for types that are created and deleted
// all the time.
//
//   struct Value : Pooled<Value> { ... };
//   auto* a = new Value;  delete a;  auto* b = new Value;  // b has the address that a had
#pragma once

#include <cstddef>
#include <new>

#include "csrc/util/prefetch.h"

namespace spmd {

inline constexpr std::align_val_t kCacheLine{kCacheLineBytes};

// The address sanitizer must see objects end, so nothing is kept under it.
#ifdef __SANITIZE_ADDRESS__
inline constexpr size_t kMostBlocks = 0;
#else
inline constexpr size_t kMostBlocks = 4096;
#endif

// A list of up to `kMost` free blocks of one size, last in, first out, linked through the blocks
// themselves. Each thread has one, which is freed when the thread ends.
// Requires: a block is no smaller than a pointer.
template <void (*kFree)(void*), size_t kMost = kMostBlocks>
class BlockList {
 public:
  // Returns null when the list is empty.
  static void* Take() {
    List& list = t_list;
    Block* const block = list.first;
    if (block == nullptr) return nullptr;
    list.first = block->next;
    --list.count;
    return block;
  }
  // Frees `memory` if the list is full or the thread is ending.
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
  // One struct, because every access to a thread-local variable costs a call. It has no destructor,
  // because each access would then check whether the destructor is registered.
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

// Base class that gives T such memory, aligned to a cache line. A class derived from T must have
// the same size as T.
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
  // Each T has its own Free, and therefore its own list.
  static void Free(void* memory) { ::operator delete(memory, kCacheLine); }
};

}  // namespace spmd
