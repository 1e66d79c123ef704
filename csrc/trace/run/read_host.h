// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace spmd::trace {

struct SessionState;

// A new contiguous host copy with the tensor's sizes. Runs what is pending if necessary; `why` is
// for explain_compile. Requires: the session's lock is held.
at::Tensor ReadHost(SessionState& state, const at::Tensor& tensor, const char* why);

}  // namespace spmd::trace
