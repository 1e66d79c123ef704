// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace spmd::trace {

// The number of a value on the tape.
using TapeId = int32_t;
inline constexpr TapeId kNoId = -1;

}  // namespace spmd::trace
