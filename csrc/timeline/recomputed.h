// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "csrc/program/program.h"

namespace spmd::timeline {

// By instruction: true for a call that computes what an earlier call has computed, from values that
// are equal in turn, as activation checkpointing makes it do. Moves do not change a value.
std::vector<bool> Recomputed(const program::Program& program);

}  // namespace spmd::timeline
