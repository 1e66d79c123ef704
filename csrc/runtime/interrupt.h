// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace spmd::runtime {

// While *flag is true, a running program stops between two instructions with Cancelled, provided
// that it has not reached its commit. A null `flag` never stops it.
// Requires: `flag` outlives its use.
void SetInterruptCheck(const std::atomic<bool>* flag);
bool Interrupted();

}  // namespace spmd::runtime
