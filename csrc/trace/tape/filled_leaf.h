// SPDX-License-Identifier: Apache-2.0
// The leaf whose gradient the running node of a backward pass fills in.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// The leaf, or an undefined tensor if the node that runs on this thread fills none.
at::Tensor FilledLeaf();

// Called where such a node may make `buffer` a gradient: when it writes to it, or takes it as it
// is. Programs leave the Buffer as the leaf is marked (Buffer::like), if both have one form.
// Requires: the session's lock is held.
void NoteGradient(Buffer& buffer);

}  // namespace spmd::trace
