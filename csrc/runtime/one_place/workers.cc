// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/workers.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <pthread.h>

#include <atomic>
#include <exception>
#include <vector>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/one_place/tile_memory.h"

namespace spmd::runtime {
namespace {

// Waking the pool costs some ten microseconds, about the time in which this many bytes are read and
// written.
constexpr int64_t kWorthWaking = 128 << 10;

// A child has none of the workers of the thread that forks, and would wait for them for ever.
const int registered = pthread_atfork(&ReleaseWorkers, nullptr, nullptr);

}  // namespace

void ReleaseWorkers() { omp_pause_resource_all(omp_pause_soft); }

// PyTorch sets the number of threads at its first call on a thread.
NoWorkers::NoWorkers() : before_(at::get_num_threads()) { omp_set_num_threads(1); }

NoWorkers::~NoWorkers() { omp_set_num_threads(before_); }

void ForEachTile(int64_t n, int64_t bytes, bool may_share, absl::FunctionRef<void(int64_t)> f) {
  const int64_t workers = at::get_num_threads();
  if (!may_share || workers == 1 || n < workers || bytes < kWorthWaking ||
      at::in_parallel_region()) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  std::vector<std::exception_ptr> failures(n);
  std::atomic<bool> failed{false};
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    const DispatchGuard guard;
    const TileMemory::Scope kept;
    for (int64_t i = begin; i < end && !failed.load(std::memory_order_relaxed); ++i) {
      try {
        f(i);
      } catch (...) {
        failures[i] = std::current_exception();
        failed.store(true, std::memory_order_relaxed);
      }
    }
  });
  if (!failed.load()) return;
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

}  // namespace spmd::runtime
