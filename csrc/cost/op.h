// SPDX-License-Identifier: Apache-2.0
// The time that one device spends on its tile of an op.
//
//   mm 1024×1024×1024 on 4 devices, m sharded: 256×1024×1024 multiply-adds; a quarter of the left
//   operand, all of the right operand and a quarter of the result through memory. The slower
//   counts.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "csrc/machine/machine.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/rule.h"

namespace spmd::cost {

// Seconds for the largest tile when factor f is divided into shards[f] parts. The work is the
// product of the factors' local sizes; the traffic is the bytes of all local operands and results.
// Both include the rows and columns that the hardware pads. `rule` is null for an op without a
// rule, which every device computes in full.
// Requires: shards.size() == factors.factors.size(), every entry is at least 1.
double OpSeconds(const rules::OpFactors& factors, const rules::Rule* rule,
                 const rules::OpCall& call, absl::Span<const int64_t> shards,
                 const machine::Machine& machine);

}  // namespace spmd::cost
