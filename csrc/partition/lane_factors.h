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
  // The major `size` indices of a factor that become part of the factor `whole`.
  struct Merged {
    int64_t size = 0;
    int whole = 0;
    friend bool operator==(Merged a, Merged b) { return a.size == b.size && a.whole == b.whole; }
  };

  std::vector<std::vector<int>> of;  // by factor: its lanes, major first
  std::vector<bool> is_lane;         // by factor
  std::vector<bool> everywhere;      // by factor: all its indices are the same, in all operands
  std::vector<std::vector<Merged>> merged;  // by factor: its lanes that are merged into it
};

// `operands` has the lanes of each operand; null for one without. Those that are `open` may have
// others. nullopt if there are none, if the lanes of operands do not correspond, or if the op would
// not compute the same without them.
std::optional<LaneFactors> FindLaneFactors(const rules::OpFactors& factors,
                                           absl::Span<const Lanes* const> operands,
                                           const std::vector<bool>& open = {});

// The lanes that an operand must have. nullopt if it has no form without them.
std::optional<Lanes> LanesOfOperand(const rules::OpFactors& factors, int operand,
                                    const LaneFactors& lanes);

// The lanes of a result: those that it has, and those that would be added up without lanes, because
// the result lacks the factors of which they are parts (Lane::kSummed). nullopt if it has no form
// without lanes.
std::optional<Lanes> LanesOfResult(const rules::OpFactors& factors, int result,
                                   const LaneFactors& lanes);

// Whether `joined`, the factors of the same op without lanes, relates the dimensions of its tensors
// as `factors` does. Lanes are by operand (null for none) and by result.
bool RelateTheSame(const rules::OpFactors& factors, absl::Span<const Lanes* const> operands,
                   absl::Span<const Lanes> results, const rules::OpFactors& joined);

}  // namespace spmd::partition
