// SPDX-License-Identifier: Apache-2.0
// Gathers or computes a value again before a later use, where the device's memory does not hold it
// meanwhile.
//
// Sharded weights are gathered once and used in the forward and in the backward pass. Gathered
// weights of all layers may be more than a device holds. Then
//
//   %1: f32[8,8] {},{} = all_gather(%w)        %1: f32[8,8] {},{} = all_gather(%w)
//   %2: … = call linear(%x, %1)                %2: … = call linear(%x, %1)
//   …                                          free %1
//   …                                          …
//   …                                          %9: f32[8,8] {},{} = all_gather(%w)
//   %5: … = call mm(%4, %1)                    %5: … = call mm(%4, %9)
//
// A result of an element-wise call is computed again if its operands are there anyhow.
//
// Nothing is made again where the program fits. Otherwise the gaps between two uses that span the
// fullest instruction come first, of these those of calls, which send nothing, and then the
// longest, because what is made again costs the same by the byte wherever it is. Only so many
// values are made again as are needed to fit, or as help if the program does not fit anyhow.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/program/program.h"

namespace spmd::partition {

struct GatheredAgain {
  int64_t gathers = 0;       // of `values`; calls make the others
  int64_t bytes = 0;         // of `values`, per device
  int64_t bytes_before = 0;  // the peak, if no call overwrites an operand
  int64_t bytes_after = 0;
  std::vector<program::ValueId> values;  // what is gathered or computed again
  int64_t wire_bytes = 0;                // that the gathers send, per device
};

// The peak is brought down to `limit_bytes` if that is possible. Takes time linear in instructions,
// operands and values, up to a logarithm.
// Requires: no frees, no updates, no merged collectives. The same holds for the result.
GatheredAgain GatherAgain(program::Program& program, int64_t limit_bytes);

}  // namespace spmd::partition
