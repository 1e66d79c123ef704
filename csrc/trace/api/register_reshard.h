// SPDX-License-Identifier: Apache-2.0
// The kernels of the dispatcher op `spmd::reshard(Tensor x, str mesh, str spec) -> Tensor`: on the
// device, and with its gradient. Python defines the op, its fake kernel and its batching rule.
#pragma once

#include <functional>
#include <string>

#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// Reads the texts of a mesh and a spec. Throws the op's error if one of them is wrong.
using ReadMark = std::function<MarkPtr(const std::string& mesh, const std::string& spec)>;

// Called once per process. `read` is called without locks, and once for texts that repeat.
void RegisterReshard(ReadMark read);

}  // namespace spmd::trace
