// SPDX-License-Identifier: Apache-2.0
// Large sums of several processes through memory that they share, portion by portion.
//
// Each process that wants a sum adds one part of it (transfer.h). The parts are worked through in
// portions that are small enough for a cache: a process gives its terms of a portion to the others,
// adds the portion of its own part, which the others take. What one writes another one reads while
// it still is in a cache, so main memory carries only the terms and the sums themselves.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "csrc/runtime/in_place.h"
#include "csrc/runtime/transfer.h"

namespace spmd::runtime {

// Collective. Adds all sums of the parts. sums[p][s] becomes sum s of part p as a row, where this
// process wants it. With `failed` this process gives zeros and takes nothing.
// Errors: those of Peers::Exchange. Throws, once all others have their sums, if this process has no
// memory for its own.
absl::Status AddInPortions(Peers& peers, InPlacePeers& memory, absl::Span<const TransferPart> parts,
                           bool failed, std::vector<std::vector<at::Tensor>>& sums);

}  // namespace spmd::runtime
