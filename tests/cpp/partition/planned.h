// SPDX-License-Identifier: Apache-2.0
// A graph with its factors, and every node planned as its cut says.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/propagate.h"

namespace spmd::partition {

struct Planned {
  ir::Graph graph;
  std::vector<propagate::NodeFactors> factors;

  // Propagates the annotations of `text`.
  explicit Planned(const std::string& text) : graph(*ir::Graph::Parse(text)) {
    absl::StatusOr<std::vector<propagate::NodeFactors>> all = propagate::ComputeFactors(graph);
    EXPECT_TRUE(all.ok()) << all.status();
    factors = *std::move(all);
    propagate::Reasons reasons;
    propagate::Propagate(graph, factors, reasons);
  }

  const Grid& grid() const { return graph.grid(0); }
  ir::ValueId ValueOf(absl::string_view name) const {
    for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
      if (graph.value(v).name == name) return v;
    }
    ADD_FAILURE() << "there is no %" << name;
    return ir::kNoValue;
  }
  Sharding Of(const char* text) const { return *Sharding::Parse(text, grid()); }
  std::string Text(const Sharding& sharding) const { return sharding.ToString(grid()); }

  // `axes`: by factor, the name of the axis that shards it; "" for none.
  Choice ChoiceOf(ir::NodeId id, const std::vector<std::string>& axes) const {
    Choice choice;
    choice.cut.resize(factors[id]->factors.size());
    for (size_t f = 0; f < axes.size(); ++f) {
      if (!axes[f].empty()) choice.cut[f].axes = grid().SubAxesOf(axes[f]);
    }
    return choice;
  }
  std::optional<NodePlan> Plan(ir::NodeId id, const std::vector<std::string>& axes) const {
    return PlanNode(graph, graph.node(id), factors[id], ChoiceOf(id, axes), 0);
  }
};

}  // namespace spmd::partition
