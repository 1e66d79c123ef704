// SPDX-License-Identifier: Apache-2.0
// Metadata of the results of ops for which PyTorch has no Meta kernel.
#pragma once

#include <vector>

#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {

// Fills in `result.tensors` and `result.counts`. Returns false if the op is not known here, or if
// `args` do not fit it (the op's kernel says what is wrong with them).
bool OwnShapes(const OpInfo& op, const std::vector<c10::IValue>& args, Inference& result);

}  // namespace spmd::trace
