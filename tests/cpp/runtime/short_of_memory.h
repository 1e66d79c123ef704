// SPDX-License-Identifier: Apache-2.0
// Memory that runs out on demand.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace spmd::runtime {

class ShortOfMemory {
 public:
  static constexpr int64_t kAny = -1;

  // Of the tensors that this thread allocates from now on, number `n` (from 0) gets no memory.
  explicit ShortOfMemory(int64_t n) {
    Install();
    left() = n;
  }
  ~ShortOfMemory() { left() = kAny; }
  ShortOfMemory(const ShortOfMemory&) = delete;
  ShortOfMemory& operator=(const ShortOfMemory&) = delete;

  // True once a tensor has had no memory.
  bool ran_out() const { return left() == kAny; }

  // Counts the tensors of exactly `bytes` bytes that any thread allocates from now on. Number
  // `fails` of them (from 0) gets no memory.
  static void Watch(int64_t bytes, int64_t fails = kAny) {
    Install();
    Watched& w = watched();
    w.count = 0;
    w.fails = fails;
    w.bytes = bytes;
  }
  static int64_t watched_count() { return watched().count; }
  // Goes in front of PyTorch's CPU allocator, once.
  static void Install() {
    static const bool installed = [] {
      c10::SetCPUAllocator(new Allocator(c10::GetCPUAllocator()));  // never deleted
      return true;
    }();
    static_cast<void>(installed);
  }

 private:
  struct Watched {
    std::atomic<int64_t> bytes{kAny}, count{0}, fails{kAny};
  };
  static Watched& watched() {
    static Watched w;
    return w;
  }
  static int64_t& left() {
    thread_local int64_t left = kAny;
    return left;
  }

  class Allocator final : public c10::Allocator {
   public:
    explicit Allocator(c10::Allocator* inner) : inner_(inner) {}
    c10::DataPtr allocate(size_t bytes) override {
      Watched& w = watched();
      if (static_cast<int64_t>(bytes) == w.bytes && w.count++ == w.fails) throw std::bad_alloc();
      if (bytes > 0 && left() != kAny && left()-- == 0) throw std::bad_alloc();
      return inner_->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
    void copy_data(void* to, const void* from, std::size_t bytes) const override {
      default_copy_data(to, from, bytes);
    }

   private:
    c10::Allocator* const inner_;
  };
};

}  // namespace spmd::runtime
