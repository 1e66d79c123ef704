// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace spmd::runtime {

// Calls f(i) for i in [0, n), each under a DispatchGuard. Requires: the caller holds one. Over the
// cores, each call with ATen's inner parallelism off, when there are at least as many items as
// cores and enough bytes to be worth it; else one after another, each with ATen's own threads. The
// first failing item's exception (by number, not by time) is thrown once all that were started have
// ended.
void ForEachTile(int64_t n, int64_t bytes, bool on_cpu, absl::FunctionRef<void(int64_t)> f);

// GNU's OpenMP gives each thread that asks for workers some of its own, and once there are more of
// all threads' workers than cores, waits for them asleep rather than spinning: five times as long
// for small ops. So workers are for one thread at a time.

// Ends the workers of the calling thread; its next parallel region starts new ones (some ten
// microseconds each). Requires: not called from a worker.
void ReleaseWorkers();

// While it lives, the calling thread works alone and asks for no workers.
class NoWorkers {
 public:
  NoWorkers();
  ~NoWorkers();
  NoWorkers(const NoWorkers&) = delete;
  NoWorkers& operator=(const NoWorkers&) = delete;

 private:
  const int before_;
};

}  // namespace spmd::runtime
