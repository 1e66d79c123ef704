// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/lane_factors.h"

#include <utility>

namespace spmd::partition {

std::optional<LaneFactors> FindLaneFactors(const rules::OpFactors& factors,
                                           absl::Span<const Lanes* const> operands) {
  LaneFactors lanes{std::vector<std::vector<int>>(factors.factors.size()),
                    std::vector<bool>(factors.factors.size(), false)};
  const auto factor = [&](size_t k, int dim) {
    const rules::DimFactors& of_dim = factors.operands[k][dim];
    return of_dim.size() == 1 ? of_dim[0] : -1;
  };
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k] == nullptr) continue;
    std::vector<std::vector<int>> mine(factors.factors.size());
    for (const Lane lane : *operands[k]) {
      const int f = factor(k, lane.dim);
      if (f < 0) return std::nullopt;
      lanes.is_lane[f] = true;
      if (lane.whole == Lane::kEverywhere) continue;
      const int whole = factor(k, lane.whole);
      if (whole < 0) return std::nullopt;
      mine[whole].push_back(f);
    }
    for (size_t f = 0; f < mine.size(); ++f) {
      if (mine[f].empty()) continue;
      if (!lanes.of[f].empty() && lanes.of[f] != mine[f]) return std::nullopt;
      lanes.of[f] = std::move(mine[f]);
    }
  }
  std::vector<int> times(factors.factors.size(), 0);
  bool any = false;
  for (const std::vector<int>& of : lanes.of) {
    for (const int f : of) {
      ++times[f];
      any = true;
    }
  }
  if (!any) return std::nullopt;
  for (size_t f = 0; f < times.size(); ++f) {
    if (times[f] != (lanes.is_lane[f] ? 1 : 0)) return std::nullopt;
    if (lanes.is_lane[f] && !lanes.of[f].empty()) return std::nullopt;
  }
  return lanes;
}

bool HasLanesOfItsFactors(const rules::OpFactors& factors, int k, const Lanes* mine,
                          const LaneFactors& lanes) {
  for (size_t whole = 0; whole < lanes.of.size(); ++whole) {
    for (const int f : lanes.of[whole]) {
      bool split = false, everywhere = false;
      for (const Lane lane : mine == nullptr ? Lanes{} : *mine) {
        if (factors.operands[k][lane.dim][0] != f) continue;
        (lane.whole == Lane::kEverywhere ? everywhere : split) = true;
      }
      if (factors.InOperand(f, k) != (split || everywhere)) return false;
      if (factors.InOperand(static_cast<int>(whole), k) != split) return false;
    }
  }
  return true;
}

int DimOfFactor(const rules::TensorFactors& tensor, int factor) {
  for (size_t d = 0; d < tensor.size(); ++d) {
    if (tensor[d].size() == 1 && tensor[d][0] == factor) return static_cast<int>(d);
  }
  return -1;
}

}  // namespace spmd::partition
