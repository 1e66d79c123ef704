// SPDX-License-Identifier: Apache-2.0
// The graph that JoinLanes writes (join_lanes.h), with what is wanted of the plan of each node.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/join_lanes.h"
#include "csrc/partition/lane_dims.h"
#include "csrc/partition/node_plan.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/op_facts.h"

namespace spmd::partition {

struct WantedPlan {
  ir::NodeId old = ir::kNoNode;  // the node of the graph that it is a copy of
  int grid = 0;
  std::vector<Sharding> operands;  // rank 0 for an absent one
  std::vector<Sharding> results;
  Choice through;  // what it passes through; its cut follows from the shardings
};

class JoinedGraph {
 public:
  // Empty, with the grids, scalars and sources of `like`, whose nodes have the plans `old`.
  JoinedGraph(const ir::Graph& like, const std::vector<NodePlan>& old);

  const TensorType& type(ir::ValueId v) const { return graph_.type(v); }
  int num_nodes() const { return graph_.num_nodes(); }
  ir::ValueId AddInput(const ir::Graph& from, ir::ValueId v);
  void AddOutput(const ir::Output& output) { graph_.AddOutput(output); }
  void Annotate(ir::ValueId v, const ir::Annotation& annotation) { graph_.Annotate(v, annotation); }

  // Adds a copy of the node, planned as it was, and returns its first result.
  ir::ValueId Copy(const ir::Graph& from, ir::NodeId id, absl::Span<const ir::ValueId> operands);
  // Nodes that are added through it belong to the same task and line as `like`.
  rules::Builder BuilderFor(const ir::Node& like);
  // Says what is wanted of the node that was added last, of which `v` is the first result. False if
  // that cannot be had exactly; then nothing may use the node.
  bool Want(ir::ValueId v, WantedPlan wanted);
  // Adds a call and returns its first result. ir::kNoValue if the operands do not fit the op, or
  // what is wanted cannot be had. Without `types` the rule tells those of the results.
  ir::ValueId Call(const ir::Node& like, const std::string& op, std::vector<ir::ValueId> operands,
                   Attributes attributes, int updates, WantedPlan wanted,
                   absl::Span<const TensorType> types = {});
  // Adds a view of `v`, which is sharded as `from`, with the sizes `dims`, sharded as `to`; what
  // was reshaped to `v` is it if it has these sizes. ir::kNoValue if a device does not have the
  // same elements of both.
  ir::ValueId View(const ir::Node& like, int grid, ir::ValueId v, const Dims& dims,
                   const Sharding& from, Sharding to);
  // Adds the product of two matrices. Of operands that are transposed, what was transposed is read,
  // if an op does that. `own` is the op that computes the product as it is given; if there is none,
  // the result may be ir::kNoValue.
  ir::ValueId Product(const ir::Node& like, rules::MatrixProduct form, ir::ValueId left,
                      ir::ValueId right, absl::string_view own, const WantedPlan& wanted);
  // Adds `v`, which is sharded as `sharding`, with its dimensions in the order `order`. A product
  // of matrices is computed in this order instead.
  ir::ValueId Permuted(const ir::Node& like, int grid, ir::ValueId v,
                       const std::vector<int64_t>& order, const Sharding& sharding);

  // What is wanted of the node that computes `v`; null for an input.
  const WantedPlan* WantedOf(ir::ValueId v) const;
  // In what sharding `v` is wanted; null for an input and for what was copied.
  const Sharding* WantedSharding(ir::ValueId v) const;
  // How `v` is sharded where it is computed.
  const Sharding& MadeSharding(ir::ValueId v) const;
  // What was reshaped to `v` and had the sizes `dims`; ir::kNoValue if nothing had.
  ir::ValueId BeforeReshape(ir::ValueId v, const Dims& dims) const;
  // Whether `v` is a reshape of another value, and none that was copied.
  bool IsReshaped(ir::ValueId v) const { return IsMadeBy(v, rules::DimsUse::kReshapes); }
  // What was reshaped to `v` by inserting or removing dimensions of size 1; `v` if nothing was.
  ir::ValueId BeforeOnes(ir::ValueId v) const;
  // What was reshaped to `v` and lacks the leading dimensions of size 1; `v` if nothing does, or if
  // it is sent before it is read in `sharding`. Changes that to the sharding of the result.
  ir::ValueId WithoutLeadingOnes(ir::ValueId v, Sharding& sharding) const;
  // Whether the call multiplies two matrices and does nothing else.
  bool MultipliesMatrices(absl::Span<const ir::ValueId> operands) const;

  // Whether the node of which `v` is the first result relates the dimensions of its tensors as
  // `factors` does, without the lanes (RelateTheSame).
  bool Relates(ir::ValueId v, const rules::OpFactors& factors,
               absl::Span<const Lanes* const> operands, absl::Span<const Lanes> results) const;

  void DropUnused();
  // The graph with the plans that are wanted; nullopt if one cannot be had exactly. The graph is
  // moved away.
  std::optional<Joined> Plan();

 private:
  bool IsPermuted(ir::ValueId v) const { return IsMadeBy(v, rules::DimsUse::kPermutes); }
  bool IsMadeBy(ir::ValueId v, rules::DimsUse use) const;
  // Of a value that is permuted, by dimension, where it came from.
  std::vector<int64_t> OrderOf(ir::ValueId v) const;
  // `v` with its dimensions in the order `order`, made of what `v` is a permutation of, or a view
  // of a permutation of. ir::kNoValue if there is none. Requires: `v` was not copied.
  ir::ValueId PermutedBefore(const ir::Node& like, int grid, ir::ValueId v,
                             const std::vector<int64_t>& order);
  // The matrix of which `v` is the transposed one; ir::kNoValue if it is none.
  ir::ValueId BeforeTransposition(ir::ValueId v) const;
  std::optional<NodePlan> PlanAsWanted(ir::NodeId id, const WantedPlan& wanted,
                                       const propagate::NodeFactors& factors) const;

  const std::vector<NodePlan>& old_;
  ir::Graph graph_;
  std::vector<WantedPlan> wanted_;  // by node
  // By what they are views or permutations of.
  absl::flat_hash_map<ir::ValueId, std::vector<ir::ValueId>> views_, permuted_;
};

}  // namespace spmd::partition
