// SPDX-License-Identifier: Apache-2.0
// Checks of arguments that an op's kernel makes and its Meta kernel does not, and of those that the
// CPU's kernel should make.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "csrc/trace/op_info.h"

namespace spmd::trace {

// False if the op's check refuses the arguments. True for ops without a check.
bool TakesArguments(const OpInfo& op, const std::vector<c10::IValue>& args);

}  // namespace spmd::trace
