// SPDX-License-Identifier: Apache-2.0
// Random well-typed graphs of core ops with random annotations, small enough for the interpreters.
#pragma once

#include <random>

#include "csrc/ir/graph.h"

namespace spmd::partition {

ir::Graph RandomModel(std::mt19937& random);

}  // namespace spmd::partition
