// SPDX-License-Identifier: Apache-2.0
// The values of a graph, and what they are in the graph that JoinLanes writes (join_lanes.h): as
// they were, without lanes, or both.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/joined_graph.h"
#include "csrc/partition/lane_dims.h"
#include "csrc/partition/node_plan.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::partition {

// A value without its lanes: `joined` has the value's other dimensions in their order, those from
// which lanes were split in full length.
struct Form {
  ir::ValueId joined = ir::kNoValue;
  Lanes lanes;
  // Lanes that were parts of a dimension of which nothing else was left have been made parts of
  // another one, so that a reshape could be written. They may be parts of any other instead.
  bool moved = false;
};

class LaneValues {
 public:
  LaneValues(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
             const std::vector<NodePlan>& plans);

 protected:
  const Grid& GridOf(ir::NodeId id) const { return graph_.grid(plans_[id].grid); }
  const Dims& DimsOf(ir::ValueId v) const { return graph_.type(v).dims; }
  const Form* FormOf(ir::ValueId v) const {
    const auto it = forms_.find(v);
    return it == forms_.end() ? nullptr : &it->second;
  }

  // Whether the result may be there without lanes only, and is sharded so that it can be.
  bool MayBeJoined(ir::NodeId id, int result, const Lanes& lanes) const;
  // Remembers a result of a node in a form. False if it has to be there as it is, or if there is
  // none.
  bool Remember(ir::NodeId id, Form form, int result = 0);
  // The value `r` is the value `v` of the new graph. False if `v` may not stand for it, or is none.
  bool BeSame(ir::ValueId r, ir::ValueId v);
  void Copy(ir::NodeId id);

  // The value as it is in the old graph.
  ir::ValueId Plain(ir::ValueId v);
  // The value without `lanes`, whose other parts a device has as it has those of the value. A value
  // that is known in another form is taken apart and put together; what is the same along the lanes
  // (a number that was expanded, say) is computed in full length instead. ir::kNoValue if there is
  // no such value.
  ir::ValueId Without(ir::ValueId v, const Lanes& lanes);
  // The same for a reader that wants the result in `sharding`. ir::kNoValue also if it would be
  // sent for that, though the value is there in another form, which others may read, and is sent
  // so.
  ir::ValueId WithoutAs(ir::ValueId v, const Lanes& lanes, const Sharding& sharding);
  // Adds `v`, sharded as `sharding`, with its dimensions in the order `order`. Dimensions of size 1
  // are moved by views, so that products see the matrices behind them.
  ir::ValueId Permuted(const ir::Node& like, int grid, ir::ValueId v,
                       const std::vector<int64_t>& order, const Sharding& sharding);
  // The result of a node that permutes, of whose operand `joined` is the value without `lanes`.
  ir::ValueId PermutedDims(ir::NodeId id, ir::ValueId joined, const Lanes& lanes);
  // By dimension of the result of a node that permutes, that of its operand.
  std::vector<int> Sources(ir::NodeId id) const;
  // `v` without the dimensions `ones` of size 1. What was reshaped to it is read, if it had these
  // sizes, and nothing is sent in between. Changes `sharding`, that of `v`, to that of the result.
  ir::ValueId WithoutOnesOf(const ir::Node& like, int grid, ir::ValueId v, const Lanes& ones,
                            Sharding& sharding);

  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  const std::vector<NodePlan>& plans_;
  JoinedGraph result_;
  std::vector<ir::ValueId> plain_;  // by value of the graph; ir::kNoValue: only its form is there
  std::vector<bool> leaves_;        // by value of the graph: it is an output
  // Whether Without may make lanes a part of what lies behind them, which is a view more.
  bool in_place_ = false;
  // Whether it may, for the value that it is asked for, make them a part of any other dimension.
  bool put_together_ = false;

 private:
  ir::ValueId Compute(ir::ValueId v, const Lanes& lanes);
  // The parts of Compute: of a value that has a form, of one whose lanes were never joined, and by
  // what an op does with dimensions.
  ir::ValueId Converted(ir::ValueId v, const Form& form, const Lanes& lanes);
  ir::ValueId Together(ir::ValueId v, const Lanes& lanes);
  ir::ValueId Filled(ir::NodeId id, const Lanes& lanes);
  ir::ValueId Expanded(ir::NodeId id, const Lanes& lanes);
  ir::ValueId Reshaped(ir::NodeId id, const Lanes& lanes);
  ir::ValueId Elementwise(ir::NodeId id, const Lanes& lanes);
  // The result of the node's op, with the sizes that it has without `lanes` as the attribute
  // `sizes`.
  ir::ValueId Sized(ir::NodeId id, const Lanes& lanes, absl::string_view sizes,
                    std::vector<ir::ValueId> operands, std::vector<Sharding> shardings);
  ir::ValueId SplitAgain(ir::NodeId id, ir::ValueId v, const Form& form);

  std::vector<bool> owned_;  // by value of the result: it stands for a value of the graph
  absl::flat_hash_map<ir::ValueId, Form> forms_;               // by value of the graph
  absl::flat_hash_map<ir::ValueId, std::vector<Form>> asked_;  // those that Without was asked for
};

}  // namespace spmd::partition
