// SPDX-License-Identifier: Apache-2.0
// Whether a thread runs a function inside of a manual region.
#pragma once

namespace spmd::trace {

inline thread_local bool in_region = false;

}  // namespace spmd::trace
