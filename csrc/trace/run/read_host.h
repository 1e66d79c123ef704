// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/util/box.h"

namespace spmd::trace {

struct SessionState;

// A new contiguous host copy with the tensor's sizes. Runs what is pending if necessary; `why` is
// for explain_compile. Requires: the session's lock is held.
at::Tensor ReadHost(SessionState& state, const at::Tensor& tensor, const char* why);

// A new contiguous host copy of a part of the tensor. Of stored data that is no view, only the part
// is copied. Requires: as ReadHost, and that the tensor contains `box`, which has its rank.
at::Tensor ReadHostPart(SessionState& state, const at::Tensor& tensor, const Box& box,
                        const char* why);

}  // namespace spmd::trace
