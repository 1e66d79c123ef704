// SPDX-License-Identifier: Apache-2.0
// How an argument that is no tensor appears in a graph: as an attribute, or as a number that is
// passed when the program runs.
#pragma once

#include <ATen/core/ivalue.h>

#include "csrc/ir/attributes.h"
#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

// True if the value of `arg` is passed when the program runs.
bool IsRuntimeValue(const ArgInfo& info, const c10::IValue& arg);
Attr AttrOf(const ArgInfo& info, const c10::IValue& value);

}  // namespace spmd::trace
