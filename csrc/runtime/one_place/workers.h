// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace spmd::runtime {

// Calls f(i) for i in [0, n), each under a DispatchGuard. With `may_share`, the calls run in
// parallel over the cores, each with ATen's inner parallelism off, if there are at least as many
// items as cores and `bytes` makes it worth it; otherwise they run one after another, each with
// ATen's own threads. Once all that were started have ended, the exception of the failing item with
// the lowest number is thrown. Requires: the caller holds a DispatchGuard.
void ForEachTile(int64_t n, int64_t bytes, bool may_share, absl::FunctionRef<void(int64_t)> f);

// Ends the workers of the calling thread; its next parallel region starts new ones (some ten
// microseconds each).
// GNU's OpenMP gives each thread that asks for workers its own ones. Once all threads together have
// more workers than cores, it waits for them asleep rather than spinning, which makes small ops
// five times as long. So only one thread has workers at a time.
// Requires: the caller is not a worker.
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
