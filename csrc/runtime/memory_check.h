// SPDX-License-Identifier: Apache-2.0
// Whether a program fits the memory of a backend's devices, and what would make it fit.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "csrc/program/program.h"
#include "csrc/runtime/backend.h"

namespace spmd::runtime {

// The bytes per device that a program may need on `backend`; 0: any number. `limit` counts if it is
// not 0 and less than what the backend has.
int64_t MemoryLimit(const Backend& backend, int64_t limit);

// Errors: ResourceExhausted if the program's peak exceeds MemoryLimit(backend, limit), with the ten
// largest values at the peak, their lines, and what would make the program fit.
absl::Status CheckMemory(const program::Program& program, const Backend& backend, int64_t limit);

}  // namespace spmd::runtime
