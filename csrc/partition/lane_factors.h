// SPDX-License-Identifier: Apache-2.0
// The lanes of an op's operands as factors of its rule: which factors are lanes, and of which other
// factors they are parts. See join_lanes.h.
#pragma once

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "csrc/partition/lane_dims.h"
#include "csrc/rules/factors.h"

namespace spmd::partition {

struct LaneFactors {
  std::vector<std::vector<int>> of;  // by factor: its lanes, major first
  std::vector<bool> is_lane;         // by factor
};

// `operands` has the lanes of each operand; null for one without. nullopt if there are none, or if
// the lanes of operands do not correspond.
std::optional<LaneFactors> FindLaneFactors(const rules::OpFactors& factors,
                                           absl::Span<const Lanes* const> operands);

// Whether operand k, of which `mine` are the lanes (null if it has none), has the lanes of the
// factors that it has, and no others.
bool HasLanesOfItsFactors(const rules::OpFactors& factors, int k, const Lanes* mine,
                          const LaneFactors& lanes);

// The dimension of a tensor that is this factor and no other; -1 if there is none.
int DimOfFactor(const rules::TensorFactors& tensor, int factor);

}  // namespace spmd::partition
