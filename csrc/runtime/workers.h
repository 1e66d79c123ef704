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

}  // namespace spmd::runtime
