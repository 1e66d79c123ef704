// SPDX-License-Identifier: Apache-2.0
// Which types out= arguments may have. Most kernels convert their results, and others refuse; no
// schema and no Meta kernel of a functional op says which.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "csrc/trace/op/op_info.h"
#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {

// True if the CPU writes results with the metadata `results` into the out= arguments of this call,
// which have other types. The call is tried on few zeros.
// Requires: `op` has out= arguments, which are in `args` in the order of `results`.
bool TakesOutTypes(const OpInfo& op, const std::vector<c10::IValue>& args,
                   const std::vector<TensorMeta>& results);

}  // namespace spmd::trace
