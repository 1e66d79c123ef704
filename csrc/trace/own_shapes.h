// SPDX-License-Identifier: Apache-2.0
// Metadata of the results of ops that PyTorch has no Meta kernel for.
#pragma once

#include <vector>

#include "csrc/trace/shape_inference.h"

namespace spmd::trace {

// Fills in tensors and counts. False: the op is not known here, or these arguments do not fit it
// (the kernel says what is wrong with them).
bool OwnShapes(const OpInfo& op, const std::vector<c10::IValue>& args, Inference& result);

}  // namespace spmd::trace
