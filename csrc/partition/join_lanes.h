// SPDX-License-Identifier: Apache-2.0
// Joins dimensions of which each device has one index with those that they were split from.
//
// In a manual region a tensor has one more dimension for each manual axis, its lanes
// (docs/design/0041-manual-regions.md):
//
//   %0: f32[64,4,32] {},{x},{} = aten::view(%w)       %w: f32[64,128] {},{x}
//   %1: f32[4,64,32] {x},{},{} = aten::permute(%0)
//   %2: f32[4,8,64] {x},{},{} = aten::expand(%g)      %g: f32[8,64] {},{}
//   %3: f32[4,8,32] {x},{},{} = aten::bmm(%2, %1)
//
// A device has the same elements in the tensor without lanes, %w, and computes the same of them:
//
//   %3: f32[8,128] {},{x} = aten::mm(%g, %w)
//
// So ops on lanes are written without lanes where the op says for which of its dimensions that is
// the same (rules::DimsUse, and its factors), the views that made and end lanes are gone, and a sum
// over the lanes of a product is a product of longer rows, a partial sum as before. Where another
// op reads lanes, they are split off again.
// This runs when the plan is known, and keeps it: nothing is sent that was not before.
#pragma once

#include <optional>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

struct Joined {
  ir::Graph graph;
  std::vector<propagate::NodeFactors> factors;  // of `graph`
  std::vector<NodePlan> plans;                  // of `graph`
};

// nullopt where that would not make the graph shorter. Inputs and outputs keep their order.
// Requires: `graph` is propagated; `factors` and `plans` are those of its nodes.
std::optional<Joined> JoinLanes(const ir::Graph& graph,
                                const std::vector<propagate::NodeFactors>& factors,
                                const std::vector<NodePlan>& plans);

}  // namespace spmd::partition
