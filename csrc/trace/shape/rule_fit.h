// SPDX-License-Identifier: Apache-2.0
// Whether an op's sharding rule fits a call. Meta refuses less than the op's kernel: a softmax over
// a dimension that does not exist, boundaries that are a matrix. The rule of such a call fits no
// program, which would be found when the program is compiled; asked at the call, PyTorch's kernel
// says what is wrong where it stands.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "csrc/trace/op/op_info.h"
#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {

// `args` follow the schema of `op`; `inferred` is Meta's answer. True for ops without a rule.
bool FitsRule(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& inferred);

}  // namespace spmd::trace
