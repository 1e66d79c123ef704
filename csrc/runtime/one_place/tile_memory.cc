// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/tile_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace spmd::runtime {
namespace {

constexpr size_t kSmallest = size_t{64} << 10;
constexpr int kPerDoubling = 4, kDoublings = 14;
constexpr int kClasses = kPerDoubling * kDoublings + 1;
constexpr size_t kLargest = kSmallest << kDoublings;
// Addresses are reserved a few units at a time, for one class each. The table gives the class of
// each unit.
constexpr int kUnitBits = 24, kAddressBits = 48;
constexpr size_t kUnit = size_t{1} << kUnitBits;
constexpr size_t kUnits = size_t{1} << (kAddressBits - kUnitBits);
// Blocks begin at different offsets into a page; with equal offsets they would share the sets of a
// cache.
constexpr size_t kGap = 4096 + 64;

constexpr size_t SizeOfClass(int c) {
  return (kSmallest / kPerDoubling * (kPerDoubling + c % kPerDoubling)) << (c / kPerDoubling);
}

// The smallest class that has room for `bytes`. Requires: kSmallest <= bytes <= kLargest.
int ClassOf(size_t bytes) {
  int c = 0;
  while (SizeOfClass(c + kPerDoubling) <= bytes && c + kPerDoubling < kClasses) c += kPerDoubling;
  while (SizeOfClass(c) < bytes) ++c;
  return c;
}

thread_local bool in_scope = false;

constexpr size_t RoundedUp(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

void* Reserve(size_t bytes, int protection) {
  void* const begin =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return begin == MAP_FAILED ? nullptr : begin;
}

// Reserves addresses at a multiple of a unit; null if the system refuses.
char* ReserveUnits(size_t bytes) {
  auto* const all = static_cast<char*>(Reserve(bytes + kUnit, PROT_READ | PROT_WRITE));
  if (all == nullptr) return nullptr;
  const size_t before = (kUnit - reinterpret_cast<uintptr_t>(all) % kUnit) % kUnit;
  if (before > 0) munmap(all, before);
  if (before < kUnit) munmap(all + before + bytes, kUnit - before);
  char* const begin = all + before;
  if ((reinterpret_cast<uintptr_t>(begin) + bytes) >> kAddressBits == 0) return begin;
  munmap(begin, bytes);  // the table does not cover these addresses
  return nullptr;
}

class Blocks {
 public:
  // Null if the system refuses.
  static Blocks* Make() {
    // Pages of the table to which nobody writes take no memory and read as zero.
    static_assert(sizeof(std::atomic<uint8_t>) == 1 && kClasses < 255);
    void* const table = Reserve(kUnits, PROT_READ | PROT_WRITE);
    return table == nullptr ? nullptr : new Blocks(static_cast<std::atomic<uint8_t>*>(table));
  }

  bool Owns(const void* block) const { return ClassAt(block) >= 0; }

  // Null if the system gives no more addresses.
  void* Take(size_t bytes) {
    const int c = ClassOf(bytes);
    const size_t size = SizeOfClass(c);
    const absl::MutexLock lock(&mutex_);
    Class& of = classes_[c];
    char* block = nullptr;
    // The block that was freed last is the most likely to be in a cache.
    if (!of.with_pages.empty()) {
      block = of.with_pages.back();
      of.with_pages.pop_back();
      stats_.kept -= static_cast<int64_t>(size);
    } else if (!of.without_pages.empty()) {
      block = of.without_pages.back();
      of.without_pages.pop_back();
    } else {
      if (of.end - of.next < static_cast<ptrdiff_t>(size + kGap) && !Grow(c)) return nullptr;
      block = of.next;
      of.next += size + kGap;
      // The vector reserves room here, so that a deleter allocates nothing.
      ++of.blocks;
      if (of.with_pages.capacity() < of.blocks) of.with_pages.reserve(2 * of.blocks);
      if (of.without_pages.capacity() < of.blocks) of.without_pages.reserve(2 * of.blocks);
    }
    stats_.in_use += static_cast<int64_t>(size);
    stats_.most_in_use = std::max(stats_.most_in_use, stats_.in_use);
    KeepWithinBounds();
    return block;
  }

  void Return(void* data) {
    char* const block = static_cast<char*>(data);
    const int c = ClassAt(block);
    const auto size = static_cast<int64_t>(SizeOfClass(c));
    const absl::MutexLock lock(&mutex_);
    classes_[c].with_pages.push_back(block);
    classes_[c].last_return = ++returns_;
    stats_.in_use -= size;
    stats_.kept += size;
    KeepWithinBounds();
  }

  void Trim() {
    const absl::MutexLock lock(&mutex_);
    for (Class& c : classes_) GiveBackPages(c);
    stats_.most_in_use = 0;
  }

  TileMemory::Stats stats() {
    const absl::MutexLock lock(&mutex_);
    return stats_;
  }

  // What the block takes. Requires: Owns(block).
  size_t SizeOf(const void* block) const { return SizeOfClass(ClassAt(block)); }

  // For forks: while it is locked, no thread is within.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex_) { mutex_.Lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION(mutex_) { mutex_.Unlock(); }

 private:
  struct Class {
    std::vector<char*> with_pages, without_pages;  // free
    char *next = nullptr, *end = nullptr;          // addresses that no block has yet
    size_t blocks = 0;
    int64_t last_return = 0;
  };

  explicit Blocks(std::atomic<uint8_t>* class_of_unit) : class_of_unit_(class_of_unit) {}

  // The class of a block; -1 if it is not from here. A thread that has a block has seen everything
  // that was written before the block was handed out.
  int ClassAt(const void* block) const {
    const size_t unit = reinterpret_cast<uintptr_t>(block) >> kUnitBits;
    if (unit >= kUnits) return -1;
    return class_of_unit_[unit].load(std::memory_order_relaxed) - 1;
  }

  // The rest of the last addresses is too short for a block, and is lost.
  bool Grow(int c) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t bytes = RoundedUp(SizeOfClass(c) + kGap);
    char* const begin = ReserveUnits(bytes);
    if (begin == nullptr) return false;
    const size_t first = reinterpret_cast<uintptr_t>(begin) >> kUnitBits;
    for (size_t k = 0; k < bytes / kUnit; ++k) {
      class_of_unit_[first + k].store(static_cast<uint8_t>(c + 1), std::memory_order_relaxed);
    }
    classes_[c].next = begin;
    classes_[c].end = begin + bytes;
    return true;
  }

  // Size classes peak at different times of a step, so more is kept than is in use at once.
  void KeepWithinBounds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (stats_.kept > 0 && 2 * (stats_.in_use + stats_.kept) > 3 * stats_.most_in_use) {
      GiveBackPages(LeastRecentlyUsed());
    }
  }

  Class& LeastRecentlyUsed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Class* oldest = nullptr;
    for (Class& c : classes_) {
      if (c.with_pages.empty()) continue;
      if (oldest == nullptr || c.last_return < oldest->last_return) oldest = &c;
    }
    return *oldest;
  }

  void GiveBackPages(Class& of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t size = SizeOfClass(static_cast<int>(&of - classes_.data()));
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (char* block : of.with_pages) {
      // The first and the last page may also belong to the neighbouring blocks.
      const uintptr_t begin = (reinterpret_cast<uintptr_t>(block) + page - 1) / page * page;
      const uintptr_t end = (reinterpret_cast<uintptr_t>(block) + size) / page * page;
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
      of.without_pages.push_back(block);
      stats_.kept -= static_cast<int64_t>(size);
    }
    of.with_pages.clear();
  }

  std::atomic<uint8_t>* const class_of_unit_;  // 1 + the class; 0: not ours
  absl::Mutex mutex_;
  std::array<Class, kClasses> classes_ ABSL_GUARDED_BY(mutex_);
  TileMemory::Stats stats_ ABSL_GUARDED_BY(mutex_);
  int64_t returns_ ABSL_GUARDED_BY(mutex_) = 0;
};

Blocks* blocks = nullptr;  // never deleted, as tensors may be freed at exit
c10::Allocator* inner = nullptr;

// Around a fork; what one locks another unlocks, which the analysis does not see.
void LockBlocks() ABSL_NO_THREAD_SAFETY_ANALYSIS { blocks->Lock(); }
void UnlockBlocks() ABSL_NO_THREAD_SAFETY_ANALYSIS { blocks->Unlock(); }

struct Counters {
  std::atomic<int64_t> bytes{0}, peak_bytes{0}, tensors{0}, bytes_ever{0}, tensors_ever{0};

  void Add(size_t size) {
    const int64_t added = static_cast<int64_t>(size);
    const int64_t now = bytes.fetch_add(added, std::memory_order_relaxed) + added;
    int64_t peak = peak_bytes.load(std::memory_order_relaxed);
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
    tensors.fetch_add(1, std::memory_order_relaxed);
    bytes_ever.fetch_add(added, std::memory_order_relaxed);
    tensors_ever.fetch_add(1, std::memory_order_relaxed);
  }
  void Remove(size_t size) {
    bytes.fetch_sub(static_cast<int64_t>(size), std::memory_order_relaxed);
    tensors.fetch_sub(1, std::memory_order_relaxed);
  }
};

Counters counters;

// Frees any CPU memory, whether it is from here or not, because PyTorch's raw interface needs one
// deleter for all.
void Free(void* data) {
  if (blocks->Owns(data)) {
    counters.Remove(blocks->SizeOf(data));
    blocks->Return(data);
  } else {
    inner->raw_deleter()(data);
  }
}

// Frees memory of PyTorch's allocator that a scope allocated.
void FreeCounted(void* data) {
  counters.Remove(malloc_usable_size(data));
  inner->raw_deleter()(data);
}

c10::DataPtr AllocateCounted(size_t bytes) {
  c10::DataPtr data = inner->allocate(bytes);
  // The C library knows the size only of what the allocator got from it directly.
  if (data.get() == nullptr || data.get() != data.get_context()) return data;
  if (!data.compare_exchange_deleter(inner->raw_deleter(), &FreeCounted)) return data;
  counters.Add(malloc_usable_size(data.get()));
  return data;
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!in_scope) return inner->allocate(bytes);
    if (bytes < kSmallest || bytes > kLargest) return AllocateCounted(bytes);
    void* const block = blocks->Take(bytes);
    if (block == nullptr) return AllocateCounted(bytes);
    counters.Add(blocks->SizeOf(block));
    return {block, block, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

bool TileMemory::Install() {
  static const bool installed = [] {
    inner = c10::GetCPUAllocator();
    if (inner->raw_deleter() == nullptr) return false;
    blocks = Blocks::Make();
    if (blocks == nullptr) return false;
    // In the child of a fork, no thread that stayed in the parent may hold the lock.
    pthread_atfork(&LockBlocks, &UnlockBlocks, &UnlockBlocks);
    c10::SetCPUAllocator(new Allocator);  // never deleted, as tensors may be freed at exit
    return true;
  }();
  return installed;
}

TileMemory::Scope::Scope() : before_(std::exchange(in_scope, true)) {}

TileMemory::Scope::~Scope() { in_scope = before_; }

void TileMemory::Trim() {
  if (blocks != nullptr) blocks->Trim();
}

TileMemory::Usage TileMemory::GetUsage() {
  return {counters.bytes, counters.peak_bytes, counters.tensors, counters.bytes_ever,
          counters.tensors_ever};
}

void TileMemory::ResetPeak() { counters.peak_bytes = counters.bytes.load(); }

TileMemory::Stats TileMemory::GetStats() { return blocks == nullptr ? Stats() : blocks->stats(); }

}  // namespace spmd::runtime
