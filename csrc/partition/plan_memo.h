// SPDX-License-Identifier: Apache-2.0
// Remembers what the searches over one graph compute more than once: the plans of calls that are
// alike (the layers of a model), and the prices of moves. The keys contain everything on which the
// answers depend.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "csrc/cost/price.h"
#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"
#include "csrc/partition/node_plan.h"

namespace spmd::partition {

// Thread safety: thread-compatible.
class PlanMemo {
 public:
  explicit PlanMemo(const machine::Machine& machine);

  // The machine's prices, as the search weighs them.
  const cost::Prices& prices() const { return prices_; }

  struct Planned {
    std::optional<NodePlan> plan;  // the result of PlanNode
    double work = 0;               // seconds that the op takes, if there is a plan
  };
  // The plan and the work of one node under `choice`. The reference stays valid. Requires:
  // `factors` outlive the memo, and `node` is in a graph with the same grids as in all other calls.
  const Planned& Plan(const ir::Graph& graph, const ir::Node& node,
                      const propagate::NodeFactors& factors, Choice choice, int grid);
  double Work(const ir::Graph& graph, const ir::Node& node, const propagate::NodeFactors& factors,
              const NodePlan& plan) const;
  double MoveSeconds(const TensorType& type, const ir::Graph& graph, int grid, const Sharding& from,
                     const Sharding& to);

 private:
  struct PlanKey {
    const rules::OpFactors* factors;  // shared by calls that are alike, see ComputeFactors
    int grid;
    Choice choice;
    friend bool operator==(const PlanKey& a, const PlanKey& b) {
      return a.factors == b.factors && a.grid == b.grid && a.choice == b.choice;
    }
    template <typename H>
    friend H AbslHashValue(H h, const PlanKey& k) {
      return H::combine(std::move(h), k.factors, k.grid, k.choice);
    }
  };
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
    return digest;
  }
  // The type of a value, its grid, and the shardings before and after; MoveRef has the same fields
  // for lookups without a copy.
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

  const cost::Prices prices_;
  absl::node_hash_map<PlanKey, Planned> plans_;
  absl::flat_hash_map<Move, double, MoveHash, MoveEq> moves_;  // seconds
};

}  // namespace spmd::partition
