// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/sharding/layout.h"

namespace spmd::trace {

// True if both layouts give the same boxes, or partial sums, to the same devices, in grids whose
// sub-axes may differ: [x=6] is 2*3 alone, and 3*2 together with a mesh [a=3, b=2]. Partial sums in
// such grids count as different.
bool SameTiles(const Layout& a, const Layout& b);

}  // namespace spmd::trace
