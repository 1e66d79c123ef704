// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/lane_factors.h"

#include <algorithm>
#include <utility>

namespace spmd::partition {
namespace {

// The dimension of a tensor of which the factor is the major part, or all; -1 if there is none.
int DimOfFactor(const rules::TensorFactors& tensor, int factor) {
  for (size_t d = 0; d < tensor.size(); ++d) {
    if (!tensor[d].empty() && tensor[d][0] == factor) return static_cast<int>(d);
  }
  return -1;
}

// Whether operand k, of which `mine` are the lanes (null if it has none), has the lanes of the
// factors that it has, and no others.
bool HasLanesOfItsFactors(const rules::OpFactors& factors, int k, const Lanes* mine,
                          const LaneFactors& lanes) {
  const Lanes none;
  const Lanes& given = mine == nullptr ? none : *mine;
  for (size_t f = 0; f < lanes.everywhere.size(); ++f) {
    if (!lanes.everywhere[f] || !factors.InOperand(static_cast<int>(f), k)) continue;
    const bool has = std::any_of(given.begin(), given.end(), [&](Lane lane) {
      return factors.operands[k][lane.dim][0] == static_cast<int>(f);
    });
    if (!has) return false;
  }
  for (size_t whole = 0; whole < lanes.of.size(); ++whole) {
    for (const int f : lanes.of[whole]) {
      bool split = false, everywhere = false;
      for (const Lane lane : given) {
        if (factors.operands[k][lane.dim][0] != f) continue;
        (AreSplit({lane}) ? split : everywhere) = true;
      }
      if (factors.InOperand(f, k) != (split || everywhere)) return false;
      if (factors.InOperand(static_cast<int>(whole), k) != split) return false;
    }
  }
  for (size_t f = 0; f < lanes.merged.size(); ++f) {
    if (lanes.merged[f].empty()) continue;
    std::vector<LaneFactors::Merged> merged;
    for (const Lane lane : given) {
      if (lane.size == 0 || factors.operands[k][lane.dim][0] != static_cast<int>(f)) continue;
      merged.push_back({lane.size, factors.operands[k][lane.whole][0]});
    }
    const bool has = factors.InOperand(static_cast<int>(f), k);
    if (merged != (has ? lanes.merged[f] : std::vector<LaneFactors::Merged>{})) return false;
    for (const LaneFactors::Merged& lane : lanes.merged[f]) {
      if (factors.InOperand(lane.whole, k) != has) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<LaneFactors> FindLaneFactors(const rules::OpFactors& factors,
                                           absl::Span<const Lanes* const> operands,
                                           const std::vector<bool>& open) {
  const size_t count = factors.factors.size();
  LaneFactors lanes{std::vector<std::vector<int>>(count), std::vector<bool>(count, false),
                    std::vector<bool>(count, false),
                    std::vector<std::vector<LaneFactors::Merged>>(count)};
  std::vector<bool> is_whole(count, false);
  const auto is_open = [&](size_t k) { return k < open.size() && open[k]; };
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k] == nullptr || is_open(k)) continue;
    const rules::TensorFactors& tensor = factors.operands[k];
    std::vector<std::vector<int>> mine(count);
    std::vector<std::vector<LaneFactors::Merged>> merged(count);
    for (const Lane lane : *operands[k]) {
      if (tensor[lane.dim].size() != 1 || lane.whole == Lane::kSummed) return std::nullopt;
      if (lane.size > 0 && lane.whole == Lane::kEverywhere) return std::nullopt;
      const int f = tensor[lane.dim][0];
      if (lane.size == 0) lanes.is_lane[f] = true;
      if (lane.whole == Lane::kEverywhere) continue;
      if (tensor[lane.whole].empty()) return std::nullopt;
      const int whole = tensor[lane.whole][0];
      is_whole[whole] = true;
      if (lane.size == 0) {
        mine[whole].push_back(f);
      } else {
        merged[f].push_back({lane.size, whole});
      }
    }
    for (size_t f = 0; f < count; ++f) {
      if (!mine[f].empty()) {
        if (!lanes.of[f].empty() && lanes.of[f] != mine[f]) return std::nullopt;
        lanes.of[f] = std::move(mine[f]);
      }
      if (!merged[f].empty()) {
        if (!lanes.merged[f].empty() && lanes.merged[f] != merged[f]) return std::nullopt;
        lanes.merged[f] = std::move(merged[f]);
      }
    }
  }
  std::vector<int> times(count, 0);  // by factor, of how many others it is a lane
  bool any = false;
  for (size_t f = 0; f < count; ++f) {
    for (const int lane : lanes.of[f]) ++times[lane];
    any = any || !lanes.of[f].empty() || !lanes.merged[f].empty();
    // Lanes of both kinds would have no order.
    for (const LaneFactors::Merged& lane : lanes.merged[f]) {
      if (!lanes.of[lane.whole].empty()) return std::nullopt;
    }
    const rules::Factor& factor = factors.factors[f];
    if (is_whole[f] && (factor.whole || factor.granularity != 1)) return std::nullopt;
  }
  for (size_t f = 0; f < count; ++f) {
    if (times[f] > (lanes.is_lane[f] ? 1 : 0)) return std::nullopt;
    if (lanes.is_lane[f] && !lanes.of[f].empty()) return std::nullopt;
    lanes.everywhere[f] = lanes.is_lane[f] && times[f] == 0;
    any = any || lanes.everywhere[f];
  }
  if (!any) return std::nullopt;
  for (size_t k = 0; k < factors.operands.size(); ++k) {
    const Lanes* const mine = k < operands.size() ? operands[k] : nullptr;
    if (!is_open(k) && !HasLanesOfItsFactors(factors, static_cast<int>(k), mine, lanes))
      return std::nullopt;
  }
  return lanes;
}

std::optional<Lanes> LanesOfOperand(const rules::OpFactors& factors, int operand,
                                    const LaneFactors& lanes) {
  const rules::TensorFactors& tensor = factors.operands[operand];
  Lanes found;
  for (size_t f = 0; f < lanes.of.size(); ++f) {
    const int own = DimOfFactor(tensor, static_cast<int>(f));
    if ((own >= 0) != factors.InOperand(static_cast<int>(f), operand)) return std::nullopt;
    if (lanes.everywhere[f] && own >= 0) found.push_back({own, Lane::kEverywhere});
    for (const int lane : lanes.of[f]) {
      const int dim = DimOfFactor(tensor, lane);
      if ((dim >= 0) != factors.InOperand(lane, operand)) return std::nullopt;
      if (dim < 0 && own >= 0) return std::nullopt;
      if (dim >= 0) found.push_back({dim, own < 0 ? Lane::kEverywhere : own});
    }
    for (const LaneFactors::Merged& lane : lanes.merged[f]) {
      const int whole = DimOfFactor(tensor, lane.whole);
      if ((own >= 0) != (whole >= 0)) return std::nullopt;
      if (own >= 0) found.push_back({own, whole, lane.size});
    }
  }
  return found;
}

std::optional<Lanes> LanesOfResult(const rules::OpFactors& factors, int result,
                                   const LaneFactors& lanes) {
  const rules::TensorFactors& tensor = factors.results[result];
  Lanes found;
  for (size_t f = 0; f < lanes.of.size(); ++f) {
    if (lanes.everywhere[f]) {
      const int dim = DimOfFactor(tensor, static_cast<int>(f));
      if (dim < 0) return std::nullopt;
      found.push_back({dim, Lane::kEverywhere});
    }
    for (const int lane : lanes.of[f]) {
      const int dim = DimOfFactor(tensor, lane);
      const int whole = DimOfFactor(tensor, static_cast<int>(f));
      if ((whole >= 0) != factors.InResult(static_cast<int>(f), result)) return std::nullopt;
      if (dim < 0 && whole >= 0) return std::nullopt;
      if (dim < 0) continue;
      if (whole < 0) {
        found.push_back({dim, Lane::kSummed, 0, factors.factors[f].reduce});
      } else {
        found.push_back({dim, whole});
      }
    }
    for (const LaneFactors::Merged& lane : lanes.merged[f]) {
      const int dim = DimOfFactor(tensor, static_cast<int>(f));
      const int whole = DimOfFactor(tensor, lane.whole);
      if ((dim >= 0) != (whole >= 0)) return std::nullopt;
      if (dim >= 0) found.push_back({dim, whole, lane.size});
    }
  }
  return found;
}

bool RelateTheSame(const rules::OpFactors& factors, absl::Span<const Lanes* const> operands,
                   absl::Span<const Lanes> results, const rules::OpFactors& joined) {
  std::vector<int> now(factors.factors.size(), -1);  // by factor, its number in `joined`
  const auto same = [&](const rules::TensorFactors& before, const Lanes* lanes,
                        const rules::TensorFactors& after) {
    size_t next = 0;
    for (size_t d = 0; d < before.size(); ++d) {
      if (lanes != nullptr && IsLane(*lanes, static_cast<int>(d))) continue;
      if (next == after.size()) return false;
      const rules::DimFactors& own = after[next++];
      // A factor whose indices have all become parts of others has size 1, and is none.
      if (own.size() != before[d].size() && !own.empty()) return false;
      for (size_t i = 0; i < own.size(); ++i) {
        int& number = now[before[d][i]];
        if (number >= 0 && number != own[i]) return false;
        number = own[i];
      }
    }
    return next == after.size();
  };
  if (factors.operands.size() != joined.operands.size() ||
      factors.results.size() != joined.results.size()) {
    return false;
  }
  for (size_t k = 0; k < factors.operands.size(); ++k) {
    const Lanes* const lanes = k < operands.size() ? operands[k] : nullptr;
    if (!same(factors.operands[k], lanes, joined.operands[k])) return false;
  }
  for (size_t r = 0; r < factors.results.size(); ++r) {
    if (!same(factors.results[r], &results[r], joined.results[r])) return false;
  }
  std::sort(now.begin(), now.end());
  const auto first = std::find_if(now.begin(), now.end(), [](int f) { return f >= 0; });
  return std::adjacent_find(first, now.end()) == now.end();
}

}  // namespace spmd::partition
