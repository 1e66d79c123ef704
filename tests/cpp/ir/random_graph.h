// SPDX-License-Identifier: Apache-2.0
// Random graphs that satisfy the verifier and use all of the text form. Ops and types mean nothing.
#pragma once

#include <random>

#include "csrc/ir/graph.h"

namespace spmd::ir {

Graph RandomGraph(std::mt19937& random);

}  // namespace spmd::ir
