// SPDX-License-Identifier: Apache-2.0
// How values are sharded once an axis that a merged dimension stopped continues.
#pragma once

#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// Thread safety: thread-compatible.
class Reach {
 public:
  // Keeps a reference to `graph`. Requires: `graph` is propagated.
  explicit Reach(const ir::Graph& graph) : graph_(graph) {}

  int GridOf(ir::ValueId v) const { return graph_.value(v).annotation->grid; }
  // The sharding of the value: with the axes that reach it now, or else as propagation found it.
  Sharding Of(ir::ValueId v) const;
  // Whether more axes reach the value than propagation found.
  bool IsBeyond(ir::ValueId v) const { return beyond_.contains(v); }

  // The axes that reach the node's factors from its operands, whose shardings are `shardings`.
  propagate::Cut CutFrom(const ir::Node& node, const propagate::NodeFactors& factors, int grid,
                         absl::Span<const Sharding> shardings) const;
  // Records the axes of `comes` that the value did not have.
  void Note(ir::ValueId v, int grid, const std::optional<Sharding>& comes);
  // Does the same for all results of a node.
  void NoteResults(const ir::Node& node, const propagate::NodeFactors& factors);

 private:
  const ir::Graph& graph_;
  absl::flat_hash_map<ir::ValueId, Sharding> beyond_;
};

}  // namespace spmd::partition
