// SPDX-License-Identifier: Apache-2.0
// Padding that repeats the image: reflection_pad and replication_pad.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// Dimensions without padding pass; the others are whole.
absl::StatusOr<OpFactors> BorderFactors(const OpCall& call);
// Applies spmd::resample along every padded dimension. Half-precision gradients are added up in
// single precision. Returns no values where a padding is negative, which crops.
absl::StatusOr<std::vector<ir::ValueId>> BorderByDimension(Builder& b, const ir::Graph& from,
                                                           const ir::Node& node, Operands operands);
absl::StatusOr<std::vector<ir::ValueId>> BorderBackwardByDimension(Builder& b,
                                                                   const ir::Graph& from,
                                                                   const ir::Node& node,
                                                                   Operands operands);

}  // namespace spmd::rules
