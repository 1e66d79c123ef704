// SPDX-License-Identifier: Apache-2.0
// Remembers the prices of moves. Candidates for one mesh ask for the same ones again and again.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/cost/price.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/grid.h"
#include "csrc/sharding/sharding.h"

namespace spmd::partition {

// Of one machine; graphs may differ. Thread safety: thread-compatible.
class MoveMemo {
 public:
  explicit MoveMemo(const cost::Prices& prices) : prices_(prices) {}

  const cost::Prices& prices() const { return prices_; }
  // What cost::PlanMove says.
  double Seconds(const TensorType& type, const GridPtr& grid, const Sharding& from,
                 const Sharding& to);
  int64_t size() const { return static_cast<int64_t>(moves_.size()); }

 private:
  // A short digest for hashing, since hashing every field of two shardings would take most of the
  // time of a lookup.
  static uint64_t Digest(const Sharding& s) {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
    uint64_t digest = 0;
    for (const DimSharding& d : s.dims) {
      for (const AxisId a : d.axes) digest = digest * 67 + static_cast<uint64_t>(a) + 1;
      digest = (digest + static_cast<uint64_t>(d.chunk)) * kFactor + 1;
    }
    for (const AxisId a : s.unreduced) digest = digest * 67 + static_cast<uint64_t>(a) + 1;
    for (const AxisId a : s.manual) digest = digest * 71 + static_cast<uint64_t>(a) + 1;
    return digest;
  }
  // The type of a value, the number of its grid, and the shardings before and after; MoveRef has
  // the same fields for lookups without a copy.
  using Move = std::tuple<TensorType, int, Sharding, Sharding>;
  using MoveRef = std::tuple<const TensorType&, int, const Sharding&, const Sharding&>;
  struct MoveHash {
    using is_transparent = void;
    template <typename T>
    size_t operator()(const T& m) const {
      return absl::HashOf(std::get<0>(m), std::get<1>(m), Digest(std::get<2>(m)),
                          Digest(std::get<3>(m)));
    }
  };
  struct MoveEq {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return std::get<1>(a) == std::get<1>(b) && std::get<2>(a) == std::get<2>(b) &&
             std::get<3>(a) == std::get<3>(b) && std::get<0>(a) == std::get<0>(b);
    }
  };

  int NumberOf(const GridPtr& grid);

  const cost::Prices prices_;
  struct Known {
    GridPtr grid;  // held, so that no other grid gets its address
    int number;    // equal for grids between which no price differs
  };
  std::vector<Known> grids_;
  absl::flat_hash_map<Move, double, MoveHash, MoveEq> moves_;  // seconds
};

}  // namespace spmd::partition
