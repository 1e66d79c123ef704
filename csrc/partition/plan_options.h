// SPDX-License-Identifier: Apache-2.0
// What a node may do with the axes: the candidates that the search prices.
//
// Axes that always travel together are one, a group. Of %y = mm(%x, %w) with factors m k n, %x cut
// as {a},{b}: group a may cut m or nothing, group b may cut k or nothing.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/partial_plan.h"

namespace spmd::partition {

// What a group of axes does at a node.
struct Option {
  enum Kind { kNone, kFactor, kThrough } kind = kNone;
  int index = 0;  // the factor; the linear operand or Choice::kJointly
  ReduceKind reduce = ReduceKind::kSum;
  // A factor that nobody wished for, beside one that the op needs whole and the group cuts, or
  // whose boundaries are not those of the group's shards.
  bool takes_over = false;
};

struct NodeOptions {
  std::vector<std::vector<Option>> by_group;  // those to prefer where they cost the same first
  std::vector<propagate::Cut> wishes;         // cuts that operands, results and users have
};

class PlanOptions {
 public:
  // Keeps a reference.
  explicit PlanOptions(const PartialPlan& plan);

  // On axes of `grid`.
  NodeOptions Of(ir::NodeId id, int grid) const;
  // The choice that gives each group its option; axes that a factor cannot take are left out. Where
  // a wish has the same axes on a factor, its order and chunk are used.
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
