// SPDX-License-Identifier: Apache-2.0
// Ops that only move, split, merge, repeat or add up dimensions, without lanes (join_lanes.h): the
// views that make lanes and end them, and what passes through them.
#pragma once

#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/lane_values.h"

namespace spmd::partition {

// Each method is for the nodes of one kind of op: it writes the node without lanes, or remembers
// its result so, and returns true; or it returns false, and the node has to be copied.
class LaneViews : public LaneValues {
 public:
  LaneViews(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
            const std::vector<NodePlan>& plans)
      : LaneValues(graph, factors, plans), users_(graph.Users()) {}

 protected:
  // A reshape of a value without lanes that splits some off.
  bool Split(ir::NodeId id);
  // A reshape of what was reshaped in the new graph, to what it was before.
  bool TakeBack(ir::NodeId id);
  bool Reshape(ir::NodeId id, const Form& form);
  bool Permute(ir::NodeId id, const Form& form);
  // Dimensions of which each device has one index are lanes that hold the same.
  bool Expand(ir::NodeId id, const Form* form);
  // A sum over the lanes of a value of which the sum is known already.
  bool Sum(ir::NodeId id, const Form& form);
  // Whether the sum of the op's results is its result for the sum of its one operand.
  bool IsLinear(ir::NodeId id, ReduceKind kind) const;
  // An op on a value whose lanes are terms of a sum is computed of the sum.
  bool Linear(ir::NodeId id, const Form& form);

  const std::vector<std::vector<ir::NodeId>> users_;  // by value of the graph

 private:
  // A reshape of the value in this form.
  bool ReshapeIn(ir::NodeId id, const Form& form);
};

}  // namespace spmd::partition
