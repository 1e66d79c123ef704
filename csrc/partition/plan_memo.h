// SPDX-License-Identifier: Apache-2.0
// Remembers what the searches over one graph compute more than once: the plans of calls that are
// alike (the layers of a model), and the prices of moves. The keys contain everything on which the
// answers depend.
#pragma once

#include <optional>

#include "absl/container/node_hash_map.h"
#include "csrc/cost/price.h"
#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"
#include "csrc/partition/move_memo.h"
#include "csrc/partition/node_plan.h"

namespace spmd::partition {

// The machine's prices, as the search weighs them.
cost::Prices SearchPrices(const machine::Machine& machine);

// Thread safety: thread-compatible.
class PlanMemo {
 public:
  // Keeps a reference to `moves`, which are of the machine at the prices of SearchPrices.
  explicit PlanMemo(MoveMemo& moves) : moves_(moves) {}

  // The machine's prices, as the search weighs them.
  const cost::Prices& prices() const { return moves_.prices(); }

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
  MoveMemo& moves_;
  absl::node_hash_map<PlanKey, Planned> plans_;
};

}  // namespace spmd::partition
