// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace spmd::runtime {

// While *flag is true, a running program stops between two instructions, as long as nothing that
// outlives it has been overwritten (Cancelled). Null: never. The flag must outlive its use.
void SetInterruptCheck(const std::atomic<bool>* flag);
bool Interrupted();

}  // namespace spmd::runtime
