// SPDX-License-Identifier: Apache-2.0
// Ops that only this library calls. They are defined so that their calls can be replayed
// (csrc/trace/recorder/replay.h), and have no kernel.
#pragma once

#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

// Defines an op of the namespace `spmd`. Called once per process for each.
const OpInfo* DefineOp(const char* name, const char* schema, Handler handler);

}  // namespace spmd::trace
