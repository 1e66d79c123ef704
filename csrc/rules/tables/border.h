// SPDX-License-Identifier: Apache-2.0
// Borders that repeat the image: reflection_pad and replication_pad.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// Dimensions without a border pass.
absl::StatusOr<OpFactors> BorderFactors(const OpCall& call);
// spmd::resample along every dimension with a border. Gradients of half precision are added in
// single. No values where a border is negative, which crops.
absl::StatusOr<std::vector<ir::ValueId>> BorderByDimension(Builder& b, const ir::Graph& from,
                                                           const ir::Node& node,
                                                           absl::Span<const ir::ValueId> operands);
absl::StatusOr<std::vector<ir::ValueId>> BorderBackwardByDimension(
    Builder& b, const ir::Graph& from, const ir::Node& node,
    absl::Span<const ir::ValueId> operands);

}  // namespace spmd::rules
