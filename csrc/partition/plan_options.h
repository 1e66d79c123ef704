// SPDX-License-Identifier: Apache-2.0
// The candidates that the search prices: what a node may do with the axes.
//
// Axes that always occur together are one group. For %y = mm(%x, %w) with factors m k n and %x
// sharded as {a},{b}, group a may shard m or nothing, and group b may shard k or nothing.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/partial_plan.h"

namespace spmd::partition {

// What a group of axes does at a node.
struct Option {
  enum Kind { kNone, kFactor, kThrough } kind = kNone;
  int index = 0;  // the factor; or the linear operand, or Choice::kJointly
  ReduceKind reduce = ReduceKind::kSum;
  // True for a factor that no wish shards by the group: either the group shards another factor of
  // the same tensor that the op needs whole, or the group's shards of the merged dimension do not
  // fall on this factor's boundaries.
  bool takes_over = false;
};

struct NodeOptions {
  std::vector<std::vector<Option>> by_group;  // at equal price, earlier ones are preferred
  std::vector<propagate::Cut> wishes;         // the cuts that operands, results and users want
};

class PlanOptions {
 public:
  // Keeps a reference to `plan`.
  explicit PlanOptions(const PartialPlan& plan);

  // The options of node `id` on axes of `grid`.
  NodeOptions Of(ir::NodeId id, int grid) const;
  // The choice that gives each group its option, without the axes that a factor cannot take. If a
  // wish has the same axes on a factor, the choice takes the wish's order and chunk.
  Choice MakeChoice(ir::NodeId id, int grid, absl::Span<const Option> options,
                    absl::Span<const propagate::Cut> wishes) const;

 private:
  template <typename Fn>
  void ForEachWish(const ir::Node& node, const propagate::NodeFactors& nf, int grid, Fn&& fn) const;
  bool MustCut(const ir::Node& node, const propagate::NodeFactors& nf, int grid,
               AxisMask axes) const;
  void AddThrough(const ir::Node& node, const propagate::NodeFactors& nf, const AxisList& group,
                  std::vector<Option>& options) const;

  const PartialPlan& plan_;
  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  std::vector<std::vector<AxisList>> groups_;  // by grid
};

}  // namespace spmd::partition
