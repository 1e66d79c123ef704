// SPDX-License-Identifier: Apache-2.0
// Puts chains that merge dimensions in an order in which the merged dimension can be sharded.
//
// An op that works on every index of a dimension by itself, or sums over all of them, does the same
// in any order of the indices; such a factor may be sharded anywhere. So where a view merges [T,B]
// with B sharded, the merged value is put in the order in which the sharded parts come first
// (merged_order.h). Everything that follows is done in that order, and the view that splits the
// dimension again restores T and B, which are sharded as before. What needs the graph's order (an
// output, a constraint, a sort, an op that knows where its tile begins) gets it by a permutation.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/part.h"
#include "csrc/partition/any_order.h"
#include "csrc/partition/at_borders.h"
#include "csrc/partition/block_ops.h"
#include "csrc/partition/merged_order.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/reach.h"
#include "csrc/partition/rewrite.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

using propagate::Cut;
using propagate::NodeFactors;

bool IsView(const ir::Node& node) {
  return rules::FactsOf(node.op).dims == rules::DimsUse::kReshapes;
}

bool AnyConstraint(const ir::Graph& graph, const ir::Node& node) {
  for (int r = 0; r < node.num_results; ++r) {
    if (IsConstraint(graph, node.first_result + r)) return true;
  }
  return false;
}

// The sizes with dimension `dim` as two: the blocks of `size`, and the indices within a block.
Dims WithBlocks(const Dims& dims, int dim, int64_t size) {
  Dims apart;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (d == dim) apart.push_back(dims[d] / size);
    apart.push_back(d == dim ? size : dims[d]);
  }
  return apart;
}

ir::ValueId ViewAs(rules::Builder& builder, ir::ValueId v, const Dims& dims) {
  return builder.View(v, std::vector<int64_t>(dims.begin(), dims.end()));
}

class Reorderer {
 public:
  Reorderer(const ir::Graph& graph, const std::vector<NodeFactors>& factors)
      : graph_(graph), factors_(factors), reach_(graph) {}

  std::optional<std::vector<ir::ValueId>> Replace(rules::Builder& builder, ir::NodeId id,
                                                  absl::Span<const ir::ValueId> operands) {
    const ir::Node& node = graph_.node(id);
    const NodeFactors& nf = factors_[id];
    if (nf.rule == nullptr || nf.rule->random) return std::nullopt;
    bool ordered = false, beyond = false;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == ir::kNoValue) continue;
      ordered = ordered || ordered_.contains(operands[k]);
      beyond = beyond || reach_.IsBeyond(node.operands[k]);
    }
    if (AnyConstraint(graph_, node)) {
      // A view that splits a merged dimension restores the graph's order by itself.
      if (IsView(node) && ordered_.contains(operands[0]))
        return View(builder, node, nf, operands[0]);
      return std::nullopt;
    }
    if (const std::optional<BlockOp> op = BlockOpOf(graph_, node)) {
      if (auto values = OnBlocks(builder, node, *op, operands)) return values;
    }
    if (!ordered && !beyond && !IsView(node)) return std::nullopt;
    if (ordered) {
      if (auto values = Carry(builder, node, nf, operands)) return values;
    }
    if (IsView(node)) {
      if (auto values = View(builder, node, nf, operands[0])) return values;
    }
    if (ordered && NeedsWhole(node, nf, operands)) {
      // The node is decomposed as if the dimension were sharded (csrc/partition/decompose.cc). The
      // next round continues from there.
      const auto parts = rules::Decomposed(*nf.rule, builder, graph_, node, operands);
      carried_ = carried_ || (parts.ok() && !parts->empty());
      if (parts.ok() && !parts->empty()) return *parts;
    }
    if (beyond) reach_.NoteResults(node, nf);
    return std::nullopt;
  }

  // Compiled::apart for a value of the new graph; empty if the value is in the graph's order.
  Dims SizesApart(ir::ValueId v, const Dims& dims) const {
    const auto it = ordered_.find(v);
    if (it == ordered_.end()) return {};
    Dims sizes;
    for (size_t d = 0; d < it->second.order.size(); ++d) {
      const DimOrder& order = it->second.order[d];
      if (order.empty()) {
        sizes.push_back(dims[d]);
      } else {
        for (const int64_t n : partition::SizesApart(order)) sizes.push_back(n);
      }
    }
    return sizes;
  }

  // Whether any op works in another order; putting a value in order alone gains nothing.
  bool carried() const { return carried_; }

 private:
  // The elements of a value of the new graph, in another order.
  struct Ordered {
    ir::ValueId value;
    DimOrders order;
    Sharding sharding;  // as far as it is known
    int grid;
  };

  // By factor: the order that operands have for it, if every tensor of the node can have that
  // order.
  std::vector<DimOrder> OrdersOf(const ir::Node& node, const NodeFactors& nf,
                                 absl::Span<const ir::ValueId> operands) const {
    std::vector<DimOrder> orders(nf->factors.size());
    std::vector<bool> stays(nf->factors.size(), false);
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == ir::kNoValue) continue;
      const auto it = ordered_.find(operands[k]);
      const Sharding known = reach_.Of(node.operands[k]);
      for (size_t d = 0; d < nf->operands[k].size(); ++d) {
        for (const int f : nf->operands[k][d]) {
          if (it == ordered_.end() || it->second.order[d].empty()) {
            // A dimension that is sharded in the graph's order is not worth moving.
            if (!known.dims[d].axes.empty()) stays[f] = true;
          } else if (orders[f].empty()) {
            orders[f] = it->second.order[d];
          } else if (!(orders[f] == it->second.order[d])) {
            stays[f] = true;
          }
        }
      }
    }
    const rules::OpCall call = rules::OpCall::Of(graph_, node);
    for (size_t f = 0; f < orders.size(); ++f) {
      if (orders[f].empty()) continue;
      if (stays[f] || !IsInAnyOrder(nf, call, static_cast<int>(f))) orders[f] = {};
    }
    return orders;
  }

  // Whether the op needs a dimension whole that an operand has in another order, and has a
  // decomposition.
  bool NeedsWhole(const ir::Node& node, const NodeFactors& nf,
                  absl::Span<const ir::ValueId> operands) const {
    if (nf.rule->decompose == nullptr) return false;
    for (size_t k = 0; k < operands.size(); ++k) {
      const auto it = operands[k] == ir::kNoValue ? ordered_.end() : ordered_.find(operands[k]);
      if (it == ordered_.end()) continue;
      for (size_t d = 0; d < nf->operands[k].size(); ++d) {
        if (it->second.order[d].empty()) continue;
        for (const int f : nf->operands[k][d]) {
          if (nf->factors[f].whole) return true;
        }
      }
    }
    return false;
  }

  static DimOrders OrderOfTensor(const rules::TensorFactors& tensor,
                                 const std::vector<DimOrder>& orders) {
    DimOrders order(tensor.size());
    for (size_t d = 0; d < tensor.size(); ++d) {
      if (tensor[d].size() == 1) order[d] = orders[tensor[d][0]];
    }
    return order;
  }

  ir::ValueId PutInOrder(rules::Builder& builder, ir::ValueId v, const DimOrders& order) {
    if (IsNatural(order)) return v;
    const auto it = ordered_.find(v);
    if (it != ordered_.end() && it->second.order == order) return it->second.value;
    for (const auto& [known, value] : put_[v]) {
      if (known == order) return value;
    }
    const Dims dims = builder.type(v).dims;
    const ir::ValueId value = InOrder(builder, Apart(builder, v, order), dims, order);
    put_[v].emplace_back(order, value);
    return value;
  }

  // The value in the graph's order, for nodes that need it.
  ir::ValueId Natural(rules::Builder& builder, Ordered ordered) {
    const Dims dims = builder.type(ordered.value).dims;
    const ir::ValueId natural =
        ViewAs(builder, ApartFromOrder(builder, ordered.value, ordered.order), dims);
    ordered_[natural] = std::move(ordered);
    return natural;
  }

  // The node on operands in another order; nullopt if the order does not apply to it.
  std::optional<std::vector<ir::ValueId>> Carry(rules::Builder& builder, const ir::Node& node,
                                                const NodeFactors& nf,
                                                absl::Span<const ir::ValueId> operands) {
    const std::vector<DimOrder> orders = OrdersOf(node, nf, operands);
    if (IsNatural(orders)) return std::nullopt;
    int grid = -1;
    std::vector<ir::ValueId> call(operands.begin(), operands.end());
    std::vector<Sharding> shardings(operands.size());
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == ir::kNoValue) continue;
      shardings[k] = reach_.Of(node.operands[k]);
      const auto it = ordered_.find(operands[k]);
      const DimOrders order = OrderOfTensor(nf->operands[k], orders);
      if (it != ordered_.end() && it->second.order == order) {
        shardings[k] = it->second.sharding;
        grid = it->second.grid;
      }
      call[k] = PutInOrder(builder, operands[k], order);
    }
    if (grid < 0) return std::nullopt;
    carried_ = true;
    const Cut cut = reach_.CutFrom(node, nf, grid, shardings);
    const ir::NodeId copy = ir::CopyNode(graph_, node, call, builder.graph());
    std::vector<ir::ValueId> results;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId old = node.first_result + r;
      const std::optional<Sharding> sharding = propagate::ShardingUnder(
          *nf, nf->results[r], graph_.type(old).dims, cut, graph_.grid(grid));
      DimOrders order = OrderOfTensor(nf->results[r], orders);
      if (IsNatural(order)) {
        reach_.Note(old, grid, sharding);
        results.push_back(builder.graph().result(copy, r));
        continue;
      }
      results.push_back(Natural(
          builder, {builder.graph().result(copy, r), std::move(order),
                    sharding ? *sharding : Sharding::Replicated(graph_.type(old).rank()), grid}));
    }
    return results;
  }

  // Rewrites a view, which merges and splits the parts of its operand's dimensions.
  std::optional<std::vector<ir::ValueId>> View(rules::Builder& builder, const ir::Node& node,
                                               const NodeFactors& nf, ir::ValueId operand) {
    const auto it = ordered_.find(operand);
    const bool was_ordered = it != ordered_.end();
    const Sharding sharding = was_ordered ? ShardingApart(it->second.sharding, it->second.order)
                                          : reach_.Of(node.operands[0]);
    if (sharding.DimAxes() == 0) return std::nullopt;
    const int grid_index = was_ordered ? it->second.grid : reach_.GridOf(node.operands[0]);
    const Grid& grid = graph_.grid(grid_index);
    const ir::ValueId source =
        was_ordered ? ApartFromOrder(builder, it->second.value, it->second.order) : operand;
    const TensorType& to = graph_.type(node.first_result);
    NodeFactors own = nf;
    if (was_ordered) {
      rules::OpCall call = rules::OpCall::Of(graph_, node);
      const TensorType from = builder.type(source);
      call.operands[0] = &from;
      const auto factors = rules::FactorsOf(*nf.rule, call);
      if (!factors.ok()) return std::nullopt;
      own.factors = std::make_shared<const rules::OpFactors>(*factors);
    }
    Cut cut = propagate::CutOf(*own, own->operands[0], builder.type(source).dims, sharding, grid);
    DimOrders order(to.rank());
    Cut natural_cut = cut;
    for (int d = 0; d < to.rank(); ++d) {
      if (auto found = OrderOf(*own, own->results[0][d], cut, grid)) {
        order[d] = *std::move(found);
        for (const int f : own->results[0][d]) natural_cut[f] = {};
      }
    }
    if (!was_ordered && IsNatural(order)) return std::nullopt;
    if (!IsNatural(order) && AnyConstraint(graph_, node)) return std::nullopt;
    carried_ = carried_ || was_ordered;
    std::optional<Sharding> known =
        propagate::ShardingUnder(*own, own->results[0], to.dims, natural_cut, grid);
    const ir::ValueId natural = ViewAs(builder, source, to.dims);
    if (IsNatural(order)) {
      reach_.Note(node.first_result, grid_index, known);
      return std::vector<ir::ValueId>{natural};
    }
    if (!known) known = Sharding::Replicated(to.rank());
    std::vector<int64_t> parts;
    for (int d = 0; d < to.rank(); ++d) {
      if (order[d].empty()) {
        parts.push_back(to.dims[d]);
        continue;
      }
      known->dims[d] = order[d].ShardingOf(grid);
      for (const DimOrder::Part& part : order[d].parts) parts.push_back(part.size);
    }
    const ir::ValueId value = InOrder(builder, builder.View(source, parts), to.dims, order);
    ordered_[natural] = {value, std::move(order), *std::move(known), grid_index};
    return std::vector<ir::ValueId>{natural};
  }

  // Describes a dimension of an operand as blocks.
  struct OperandBlocks {
    int64_t count;
    Blocks blocks;
    Sharding sharding;  // with dimension `dim` as one block
  };
  // `size` is that of a block if the operand is in the graph's order.
  std::optional<OperandBlocks> BlocksOfOperand(ir::ValueId old, ir::ValueId v, int dim,
                                               int64_t size) const {
    const int64_t extent = graph_.type(old).dims[dim];
    const auto it = ordered_.find(v);
    if (it != ordered_.end()) {
      const DimOrders& order = it->second.order;
      for (size_t d = 0; d < order.size(); ++d) {
        if (static_cast<int>(d) != dim && !order[d].empty()) return std::nullopt;
      }
      std::optional<Blocks> blocks = BlocksOf(order[dim]);
      if (!blocks.has_value()) return std::nullopt;
      Sharding sharding = it->second.sharding;
      sharding.dims[dim] = blocks->inner.ShardingOf(graph_.grid(it->second.grid));
      return OperandBlocks{extent / blocks->size, *std::move(blocks), std::move(sharding)};
    }
    if (size == 0 || extent % size != 0) return std::nullopt;
    Sharding sharding = reach_.Of(old);
    const DimSharding cut = sharding.dims[dim];
    DimOrder inner;
    if (!cut.axes.empty()) {
      if (extent != size) return std::nullopt;  // not an interval of each block
      inner = InShards(size, cut, graph_.grid(reach_.GridOf(old)));
    }
    return OperandBlocks{extent / size, {size, std::move(inner)}, std::move(sharding)};
  }

  // Rewrites an op that takes blocks from a dimension of sharded blocks or puts them into one.
  std::optional<std::vector<ir::ValueId>> OnBlocks(rules::Builder& builder, const ir::Node& node,
                                                   const BlockOp& op,
                                                   absl::Span<const ir::ValueId> operands) {
    const bool joins = op.use == rules::BlockUse::kJoin;
    const TensorType& to = graph_.type(node.first_result);
    int64_t size = op.use == rules::BlockUse::kPlace ? op.end - op.start : 0;
    if (joins || op.use == rules::BlockUse::kPut) {
      size = graph_.type(node.operands.back()).dims[op.dim];
    }
    for (size_t k = 0; k < operands.size(); ++k) {
      const auto it = ordered_.find(operands[k]);
      if (it == ordered_.end() || graph_.type(node.operands[k]).rank() != to.rank()) continue;
      const auto blocks = BlocksOf(it->second.order[op.dim]);
      if (blocks.has_value() && !blocks->inner.empty()) size = blocks->size;
    }
    std::vector<OperandBlocks> apart;
    const OperandBlocks* cut = nullptr;
    int grid = -1;
    apart.reserve(operands.size());
    for (size_t k = 0; k < operands.size(); ++k) {
      if (graph_.type(node.operands[k]).rank() != to.rank()) return std::nullopt;
      auto blocks = BlocksOfOperand(node.operands[k], operands[k], op.dim, size);
      if (!blocks.has_value()) return std::nullopt;
      apart.push_back(*std::move(blocks));
      if (cut != nullptr || apart.back().blocks.inner.empty()) continue;
      cut = &apart.back();
      const auto it = ordered_.find(operands[k]);
      grid = it != ordered_.end() ? it->second.grid : reach_.GridOf(node.operands[k]);
    }
    if (cut == nullptr) return std::nullopt;
    size = cut->blocks.size;
    for (const OperandBlocks& other : apart) {
      if (other.blocks.size != size) return std::nullopt;
      if (!other.blocks.inner.empty() && !(other.blocks.inner == cut->blocks.inner)) {
        return std::nullopt;
      }
    }
    if (to.dims[op.dim] % size != 0) return std::nullopt;
    if (!joins && (op.start % size != 0 || op.end % size != 0)) return std::nullopt;
    std::vector<ir::ValueId> call;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Dims& dims = graph_.type(node.operands[k]).dims;
      const auto it = ordered_.find(operands[k]);
      const ir::ValueId source = it == ordered_.end()
                                     ? operands[k]
                                     : ApartFromOrder(builder, it->second.value, it->second.order);
      call.push_back(ViewAs(builder, source, WithBlocks(dims, op.dim, size)));
    }
    carried_ = true;
    const ir::ValueId result = CallOnBlocks(builder, node, op, size, std::move(call));
    const ir::ValueId natural = ViewAs(builder, result, to.dims);
    if (to.dims[op.dim] == size) {
      reach_.Note(node.first_result, grid, cut->sharding);
      return std::vector<ir::ValueId>{natural};
    }
    DimOrders order(to.rank());
    order[op.dim] = BlocksInOrder(to.dims[op.dim] / size, cut->blocks.inner);
    Sharding sharding = cut->sharding;
    sharding.dims[op.dim] = order[op.dim].ShardingOf(graph_.grid(grid));
    const ir::ValueId value = InOrder(builder, Apart(builder, natural, order), to.dims, order);
    ordered_[natural] = {value, std::move(order), std::move(sharding), grid};
    return std::vector<ir::ValueId>{natural};
  }

  const ir::Graph& graph_;
  const std::vector<NodeFactors>& factors_;
  // By value of the new graph: the same elements in another order, and the values that were put in
  // some order.
  absl::flat_hash_map<ir::ValueId, Ordered> ordered_;
  absl::flat_hash_map<ir::ValueId, std::vector<std::pair<DimOrders, ir::ValueId>>> put_;
  Reach reach_;  // of the old graph
  bool carried_ = false;
};

// Whether the view merges dimensions so that the merged one cannot be sharded as they are.
bool MergesApart(const ir::Graph& graph, const ir::Node& node, const NodeFactors& nf) {
  if (!IsView(node) || nf.rule == nullptr || AnyConstraint(graph, node)) return false;
  const ir::Annotation& annotation = *graph.value(node.operands[0]).annotation;
  const Sharding sharding = annotation.sharding.Reduced();
  if (sharding.DimAxes() == 0) return false;
  const Grid& grid = graph.grid(annotation.grid);
  const Cut cut =
      propagate::CutOf(*nf, nf->operands[0], graph.type(node.operands[0]).dims, sharding, grid);
  return std::any_of(nf->results[0].begin(), nf->results[0].end(),
                     [&](const auto& dim) { return OrderOf(*nf, dim, cut, grid).has_value(); });
}

}  // namespace

absl::StatusOr<bool> Reorder(ir::Graph& graph, const std::vector<NodeFactors>& factors,
                             std::vector<Dims>& apart) {
  bool any = false;
  for (ir::NodeId id = 0; id < graph.num_nodes() && !any; ++id) {
    any = MergesApart(graph, graph.node(id), factors[id]);
  }
  if (!any) return false;
  Reorderer reorderer(graph, factors);
  SPMD_ASSIGN_OR_RETURN(ir::Graph next,
                        Rewrite(graph,
                                [&](rules::Builder& builder, const ir::Graph&, ir::NodeId id,
                                    absl::Span<const ir::ValueId> operands)
                                    -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
                                  return reorderer.Replace(builder, id, operands);
                                }));
  if (!reorderer.carried()) return false;
  apart.resize(graph.outputs().size());
  for (size_t k = 0; k < apart.size(); ++k) {
    const ir::ValueId v = next.outputs()[k].value;
    if (apart[k].empty()) apart[k] = reorderer.SizesApart(v, next.type(v).dims);
  }
  graph = std::move(next);
  return true;
}

}  // namespace spmd::partition
