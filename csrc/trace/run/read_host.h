// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/util/box.h"

namespace spmd::trace {

struct SessionState;

// A new contiguous host copy with the tensor's sizes. Runs what is pending if necessary; `why` is
// for explain_compile. Requires: the session's lock is held.
at::Tensor ReadHost(SessionState& state, const at::Tensor& tensor, const char* why);

// A new contiguous host copy of a part of the tensor. If the tensor is no view and a tile of this
// process holds the part, only that is copied, and nobody else takes part. Requires: as ReadHost,
// and that the tensor contains `box`, which has its rank.
at::Tensor ReadHostPart(SessionState& state, const at::Tensor& tensor, const Box& box,
                        const char* why);

// Whether ReadHostPart reads what this process holds without the others: of a tensor that is no
// view and whose value has been computed, not as partial sums. The same in all processes.
bool ReadsAlone(SessionState& state, const at::Tensor& tensor);

}  // namespace spmd::trace
