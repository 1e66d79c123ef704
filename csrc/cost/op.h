// SPDX-License-Identifier: Apache-2.0
// What one device spends on its tile of an op.
//
//   mm 1024×1024×1024 on 4 devices, m cut: 256×1024×1024 multiply-adds, and a quarter of the rows,
//   all of the right operand and a quarter of the result through memory; the slower of the two.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "csrc/machine/machine.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/rule.h"

namespace spmd::cost {

// Seconds for the largest tile when factor f is cut into shards[f] parts. Work is the product of
// the factors' local sizes, traffic the bytes of all local operands and results; both count the
// rows and columns that the hardware pads. `rule` is null for an op without one: it runs whole.
// Requires: shards.size() == factors.factors.size(), all at least 1.
double OpSeconds(const rules::OpFactors& factors, const rules::Rule* rule,
                 const rules::OpCall& call, absl::Span<const int64_t> shards,
                 const machine::Machine& machine);

}  // namespace spmd::cost
