// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/own_rows.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/evaluate.h"
#include "csrc/ir/part.h"
#include "csrc/partition/any_order.h"
#include "csrc/partition/at_borders.h"
#include "csrc/partition/rewrite.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/row_index.h"
#include "csrc/sharding/layout.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

using propagate::NodeFactors;
using rules::RowsUse;

// Which row belongs to which block: the list of indices, by what computes it, and the dimension
// that they refer to.
struct Owner {
  std::string list;
  int64_t size = 0;  // of the dimension
  int64_t blocks = 0;

  friend bool operator==(const Owner& a, const Owner& b) {
    return a.list == b.list && a.size == b.size && a.blocks == b.blocks;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Owner& o) {
    return H::combine(std::move(h), o.list, o.size, o.blocks);
  }
};

// A value whose dimension `dim` has the rows of all blocks, and the list itself.
struct Rows {
  ir::ValueId value = ir::kNoValue;
  int dim = 0;
  ir::ValueId list = ir::kNoValue;
  Owner owner;
};

// An op that reads or writes by index, with one index list per indexed dimension.
struct ByIndex {
  bool reads = false;
  bool adds = false;
  bool may_be_negative = false;
  std::vector<ir::ValueId> indices;  // by dimension of operand 0, of the new graph; or kNoValue
  std::vector<int> replaced;
  int64_t rows = 0;
};

class RowOwner {
 public:
  RowOwner(const ir::Graph& graph, const std::vector<NodeFactors>& factors)
      : graph_(graph), factors_(factors) {}

  std::optional<std::vector<ir::ValueId>> Replace(rules::Builder& builder, ir::NodeId id,
                                                  absl::Span<const ir::ValueId> operands) {
    const ir::Node& node = graph_.node(id);
    const NodeFactors& nf = factors_[id];
    if (nf.rule == nullptr || nf.rule->random) return std::nullopt;
    if (const RowsUse kind = rules::RowsUseOf(node.op); kind != RowsUse::kNone) {
      if (kind == RowsUse::kTogether) return Begin(builder, node, operands);
      if (kind == RowsUse::kApart) return End(builder, node, operands);
      const std::optional<ByIndex> use = ByIndexOf(node, kind, operands);
      if (use.has_value() && use->reads) return Read(builder, node, *use, operands);
      if (use.has_value()) {
        if (auto values = Write(builder, node, *use, operands)) return values;
      }
    }
    return Carry(builder, node, nf, operands);
  }

  // Whether any rows are summed or written back without being brought together before.
  bool ended() const { return ended_; }

  // What output `k` of `next`, the new graph, is if it has the rows of all blocks; `lists` are the
  // last outputs.
  std::optional<OwnedOutput> OutputOf(const ir::Graph& next, size_t k, size_t lists) {
    const Rows* const rows = Find(next.outputs()[k].value);
    if (rows == nullptr || !written_.contains(rows->owner)) return std::nullopt;
    const size_t first = next.outputs().size() - lists;
    for (size_t j = 0; j < lists; ++j) {
      if (TextOf(next, next.outputs()[first + j].value) != rows->owner.list) continue;
      return OwnedOutput{{rows->dim, rows->owner.size, rows->owner.blocks}, static_cast<int>(j)};
    }
    return std::nullopt;
  }

 private:
  const Rows* Find(ir::ValueId v) const {
    const auto it = v == ir::kNoValue ? rows_.end() : rows_.find(v);
    return it == rows_.end() ? nullptr : &it->second;
  }

  // Two lists with the same text are equal.
  const std::string& TextOf(const ir::Graph& graph, ir::ValueId v) {
    const auto known = texts_.find(v);
    if (known != texts_.end()) return known->second;
    std::string text = absl::StrCat("%", v);
    const ir::NodeId producer = graph.value(v).producer;
    if (producer != ir::kNoNode) {
      const ir::Node& node = graph.node(producer);
      const rules::Rule* rule = rules::Find(node.op);
      if (rule != nullptr && !rule->random && node.operands.size() == 1 && node.num_results == 1) {
        text = absl::StrCat(node.op, "(", node.attributes.ToString(), ",",
                            TextOf(graph, node.operands[0]), ")");
      }
    }
    return texts_[v] = std::move(text);
  }

  std::optional<ByIndex> ByIndexOf(const ir::Node& node, RowsUse use,
                                   absl::Span<const ir::ValueId> operands) const {
    const rules::OpCall call = rules::OpCall::Of(graph_, node);
    const int rank = call.operand(0).rank();
    ByIndex by;
    by.reads = use == RowsUse::kRead || use == RowsUse::kReadAlong;
    by.indices.assign(rank, ir::kNoValue);
    if (use == RowsUse::kRead || use == RowsUse::kWrite) {
      const int count = static_cast<int>(operands.size()) - (by.reads ? 1 : 2);
      if (count > rank) return std::nullopt;
      for (int d = 0; d < count; ++d) by.indices[d] = operands[1 + d];
      by.may_be_negative = true;
      by.adds = node.attributes.GetBoolOr("accumulate", false);
    } else {
      if (rank == 0) return std::nullopt;
      by.indices[call.Dim("dim", rank)] = operands[1];
      by.adds = !by.reads;
    }
    for (int d = 0; d < rank; ++d) {
      if (by.indices[d] == ir::kNoValue) continue;
      const bool along = use == RowsUse::kReadAlong || use == RowsUse::kAddAlong;
      const TensorType& index = call.operand(along ? 1 : 1 + d);
      const bool integers = index.dtype == DType::kI64 || index.dtype == DType::kI32;
      if (!integers || index.rank() != 1 || index.dims[0] < 2) return std::nullopt;
      if (!by.replaced.empty() && index.dims[0] != by.rows) return std::nullopt;
      by.rows = index.dims[0];
      by.replaced.push_back(d);
    }
    if (by.replaced.empty()) return std::nullopt;
    return by;
  }

  // The indexed dimension of operand 0 that is sharded, and into how many equal shards; none if
  // there is not exactly one.
  std::optional<std::pair<int, int64_t>> Sharded(const ir::Node& node, const ByIndex& by) const {
    const ir::ValueId self = node.operands[0];
    const auto& annotation = graph_.value(self).annotation;
    if (!annotation.has_value()) return std::nullopt;
    std::optional<std::pair<int, int64_t>> found;
    for (const int d : by.replaced) {
      const DimSharding& dim = annotation->sharding.dims[d];
      const int64_t size = graph_.type(self).dims[d];
      const int64_t shards = graph_.grid(annotation->grid).size(dim.axes);
      if (shards == 1) continue;
      if (found.has_value() || size == 0 || size % shards != 0) return std::nullopt;
      if (dim.chunk != 0 && dim.chunk != size / shards) return std::nullopt;
      found = {d, shards};
    }
    return found;
  }

  // The op stays, for those that need its result as it is.
  std::optional<std::vector<ir::ValueId>> Read(rules::Builder& builder, const ir::Node& node,
                                               const ByIndex& by,
                                               absl::Span<const ir::ValueId> operands) {
    if (IsConstraint(graph_, node.first_result)) return std::nullopt;
    const TensorType self = builder.type(operands[0]);
    auto sharded = Sharded(node, by);
    for (size_t k = 0; k < by.replaced.size() && !sharded.has_value(); ++k) {
      // Nothing is known of a gradient that is written by index, but it is read by the same list.
      const int d = by.replaced[k];
      const auto it = blocks_.find({TextOf(builder.graph(), by.indices[d]), self.dims[d]});
      if (it != blocks_.end()) sharded = {d, it->second};
    }
    if (!sharded.has_value()) return std::nullopt;
    const auto [dim, blocks] = *sharded;
    const ir::NodeId copy = ir::CopyNode(graph_, node, operands, builder.graph());
    const ir::ValueId as_it_is = builder.graph().result(copy);
    Rows rows;
    rows.value = rules::ReadRows(builder, operands[0], by.indices, by.may_be_negative, dim, blocks);
    rows.dim = rules::RowsDim(by.replaced);
    rows.list = by.indices[dim];
    rows.owner = {TextOf(builder.graph(), rows.list), self.dims[dim], blocks};
    blocks_.try_emplace({rows.owner.list, rows.owner.size}, blocks);
    rows_[as_it_is] = std::move(rows);
    return std::vector<ir::ValueId>{as_it_is};
  }

  // Rows that an earlier program has left. The op stays, for those that need them as they are.
  std::optional<std::vector<ir::ValueId>> Begin(rules::Builder& builder, const ir::Node& node,
                                                absl::Span<const ir::ValueId> operands) {
    if (IsConstraint(graph_, node.first_result)) return std::nullopt;
    const auto of = rules::BlocksOfRows::Of(rules::OpCall::Of(graph_, node));
    const ir::NodeId copy = ir::CopyNode(graph_, node, operands, builder.graph());
    const ir::ValueId as_it_is = builder.graph().result(copy);
    Rows rows{operands[0],
              of.dim,
              operands[1],
              {TextOf(builder.graph(), operands[1]), of.size, of.blocks}};
    blocks_.try_emplace({rows.owner.list, rows.owner.size}, of.blocks);
    rows_[as_it_is] = std::move(rows);
    return std::vector<ir::ValueId>{as_it_is};
  }

  // Rows that a later program gets.
  std::optional<std::vector<ir::ValueId>> End(rules::Builder& builder, const ir::Node& node,
                                              absl::Span<const ir::ValueId> operands) {
    const Rows* const rows = Find(operands[0]);
    const auto of = rules::BlocksOfRows::Of(rules::OpCall::Of(graph_, node));
    if (rows == nullptr || rows->dim != of.dim ||
        !(rows->owner == Owner{TextOf(builder.graph(), operands[1]), of.size, of.blocks})) {
      return std::nullopt;
    }
    ended_ = true;
    return std::vector<ir::ValueId>{
        rules::OnlyRows(builder, Belongs(builder, *rows), rows->value, rows->dim)};
  }

  std::optional<std::vector<ir::ValueId>> Write(rules::Builder& builder, const ir::Node& node,
                                                const ByIndex& by,
                                                absl::Span<const ir::ValueId> operands) {
    const ir::ValueId values = operands.back();
    const Rows* const found = Find(values);
    if (found == nullptr || found->dim != rules::RowsDim(by.replaced)) return std::nullopt;
    const Rows rows = *found;
    const TensorType self = builder.type(operands[0]);
    if (builder.type(values).dtype != self.dtype) return std::nullopt;
    int dim = -1;
    for (const int d : by.replaced) {
      const bool owns = self.dims[d] == rows.owner.size &&
                        TextOf(builder.graph(), by.indices[d]) == rows.owner.list;
      if (owns) dim = d;
    }
    if (dim < 0) return std::nullopt;
    Dims expected;
    for (int d = 0; d < self.rank(); ++d) {
      if (by.indices[d] == ir::kNoValue) expected.push_back(self.dims[d]);
    }
    expected.insert(expected.begin() + rows.dim, by.rows);
    if (builder.type(values).dims != expected) return std::nullopt;
    ir::ValueId written = rows.value;
    const Attr* alpha = node.attributes.Find("alpha");
    if (alpha != nullptr && !SameAttr(*alpha, int64_t{1})) {
      if (IsIntegral(self.dtype, /*include_bool=*/true)) return std::nullopt;
      written = builder.MulScalar(written, *alpha);
    }
    ended_ = true;
    written_.insert(rows.owner);
    return std::vector<ir::ValueId>{rules::WriteRows(builder, operands[0], by.indices, written,
                                                     by.adds, by.may_be_negative, dim,
                                                     rows.owner.blocks)};
  }

  // By row of k·n: whether it belongs to its block.
  ir::ValueId Belongs(rules::Builder& builder, const Rows& rows) {
    ir::ValueId& mask = masks_.try_emplace(rows.owner, ir::kNoValue).first->second;
    if (mask == ir::kNoValue) {
      mask = rules::RowsOfBlocks(builder, rows.list, rows.owner.size, rows.owner.blocks);
    }
    return mask;
  }

  // The rows as they were: the sum of all blocks.
  ir::ValueId Together(rules::Builder& builder, const Rows& rows) {
    return rules::SumOfBlocks(
        builder, rules::OnlyRows(builder, Belongs(builder, rows), rows.value, rows.dim), rows.dim,
        rows.owner.blocks);
  }

  // Whether partial sums over shards of factor `f` are zero where the operands are.
  static bool SumsRows(const NodeFactors& nf, const rules::OpCall& call, int f) {
    if (nf->factors[f].reduce != ReduceKind::kSum) return false;
    const rules::Linearity linear = rules::LinearityOf(*nf.rule, call, ReduceKind::kSum);
    const auto has = [&](int k) { return nf->InOperand(f, k); };
    return std::any_of(linear.each.begin(), linear.each.end(), has) ||
           (!linear.jointly.empty() &&
            std::all_of(linear.jointly.begin(), linear.jointly.end(), has));
  }

  // Whether no tensor has factor `f` in two dimensions.
  static bool OccursOnce(const std::vector<rules::TensorFactors>& tensors, int f) {
    return std::all_of(tensors.begin(), tensors.end(), [f](const rules::TensorFactors& tensor) {
      return std::count_if(tensor.begin(), tensor.end(), [f](const rules::DimFactors& dim) {
               return std::count(dim.begin(), dim.end(), f) > 0;
             }) <= 1;
    });
  }

  // The dimension that factor `f` is, or -1.
  static int DimOf(const rules::TensorFactors& tensor, int f) {
    for (size_t d = 0; d < tensor.size(); ++d) {
      if (tensor[d].size() == 1 && tensor[d][0] == f) return static_cast<int>(d);
    }
    return -1;
  }

  // The node on the rows of all blocks; nullopt if it does not work on every row by itself, and is
  // no sum over them.
  std::optional<std::vector<ir::ValueId>> Carry(rules::Builder& builder, const ir::Node& node,
                                                const NodeFactors& nf,
                                                absl::Span<const ir::ValueId> operands) {
    int factor = -1;
    Rows of;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Rows* const rows = Find(operands[k]);
      if (rows == nullptr) continue;
      const rules::DimFactors& dim = nf->operands[k][rows->dim];
      if (dim.size() != 1 || (factor >= 0 && (dim[0] != factor || !(rows->owner == of.owner)))) {
        return std::nullopt;
      }
      factor = dim[0];
      of = *rows;
    }
    if (factor < 0) return std::nullopt;
    const rules::OpCall call = rules::OpCall::Of(graph_, node);
    if (!IsInAnyOrder(nf, call, factor)) return std::nullopt;
    if (!OccursOnce(nf->operands, factor) || !OccursOnce(nf->results, factor)) return std::nullopt;
    bool sums = false;
    for (int r = 0; r < node.num_results; ++r) {
      // An op that fails on some values would fail on rows that are not its block's.
      if (MayFail(nf.rule->facts, graph_.type(node.first_result + r).dtype)) return std::nullopt;
      // A mark of rows is one of the rows as they are.
      const bool marked = IsConstraint(graph_, node.first_result + r);
      if (marked && nf->InResult(factor, r)) return std::nullopt;
      // A result that is left out has no elements.
      if (nf->InResult(factor, r) || call.results[r].NumElements() == 0) continue;
      if (nf->SameInShards(r)) return std::nullopt;
      sums = true;
    }
    if (sums && !SumsRows(nf, call, factor)) return std::nullopt;

    std::vector<ir::ValueId> on(operands.begin(), operands.end());
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == ir::kNoValue) continue;
      const int dim = DimOf(nf->operands[k], factor);
      if (dim < 0) continue;
      const Rows* const rows = Find(operands[k]);
      on[k] = rows != nullptr ? rows->value
                              : rules::RowsForBlocks(builder, operands[k], dim, of.owner.blocks);
      if (sums) on[k] = rules::OnlyRows(builder, Belongs(builder, of), on[k], dim);
    }
    const ir::NodeId copy = CopyOnBlocks(builder, node, nf, call, factor, on, of.owner.blocks);
    std::vector<ir::ValueId> results;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId value = builder.graph().result(copy, r);
      if (!nf->InResult(factor, r)) {
        results.push_back(value);
        continue;
      }
      Rows rows = of;
      rows.value = value;
      rows.dim = DimOf(nf->results[r], factor);
      results.push_back(Together(builder, rows));
      rows_[results.back()] = std::move(rows);
    }
    ended_ = ended_ || sums;
    return results;
  }

  // Attributes that depend on sizes are those of a call on a tile that has the rows of all blocks.
  ir::NodeId CopyOnBlocks(rules::Builder& builder, const ir::Node& node, const NodeFactors& nf,
                          const rules::OpCall& call, int factor, absl::Span<const ir::ValueId> on,
                          int64_t blocks) {
    ir::Graph::NodeSpec spec;
    spec.op = node.op;
    spec.operands.assign(on.begin(), on.end());
    spec.groups = node.groups;
    spec.task = node.task;
    spec.source = node.source;
    std::vector<TensorType> types;
    for (int r = 0; r < node.num_results; ++r) {
      types.push_back(graph_.type(node.first_result + r));
      const int dim = DimOf(nf->results[r], factor);
      if (dim >= 0) types.back().dims[dim] *= blocks;
    }
    rules::CutFactors cut(nf->factors.size(), false);
    cut[factor] = true;
    spec.attributes = nf.rule->local != nullptr ? nf.rule->local(call, *nf, cut) : node.attributes;
    for (const auto& [name, value] : nf.rule->local_attributes) spec.attributes.Set(name, value);
    const auto size = [&](TensorRef tensor, int dim) {
      return tensor.kind == TensorRef::Kind::kOperand ? builder.type(on[tensor.index]).dims[dim]
                                                      : types[tensor.index].dims[dim];
    };
    const Expr::Env env{.start = [](TensorRef, int) { return int64_t{0}; },
                        .size = size,
                        .extent = size,
                        .coord = [](int) { return int64_t{0}; }};
    spec.attributes = Evaluated(spec.attributes, env);
    return builder.graph().AddNode(std::move(spec), types);
  }

  const ir::Graph& graph_;
  const std::vector<NodeFactors>& factors_;
  // By value of the new graph that has the rows as they were: the rows of all blocks.
  absl::flat_hash_map<ir::ValueId, Rows> rows_;
  absl::flat_hash_map<Owner, ir::ValueId> masks_;
  absl::flat_hash_map<ir::ValueId, std::string> texts_;
  // By list and size of a dimension: in how many blocks the list was used first.
  absl::flat_hash_map<std::pair<std::string, int64_t>, int64_t> blocks_;
  absl::flat_hash_set<Owner> written_;  // whose rows are written back
  bool ended_ = false;
};

absl::StatusOr<ir::Graph> RewrittenBy(RowOwner& owner, const ir::Graph& graph) {
  return Rewrite(graph,
                 [&](rules::Builder& builder, const ir::Graph&, ir::NodeId id,
                     absl::Span<const ir::ValueId> operands)
                     -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
                   return owner.Replace(builder, id, operands);
                 });
}

}  // namespace

absl::StatusOr<bool> OwnRows(ir::Graph& graph, const std::vector<NodeFactors>& factors) {
  const auto& nodes = graph.nodes();
  const bool any = std::any_of(nodes.begin(), nodes.end(), [](const ir::Node& node) {
    const RowsUse use = rules::RowsUseOf(node.op);
    return use == RowsUse::kRead || use == RowsUse::kReadAlong || use == RowsUse::kTogether;
  });
  if (!any) return false;
  RowOwner owner(graph, factors);
  SPMD_ASSIGN_OR_RETURN(ir::Graph next, RewrittenBy(owner, graph));
  if (!owner.ended()) return false;
  graph = std::move(next);
  return true;
}

absl::StatusOr<std::vector<std::optional<OwnedOutput>>> OwnedOutputs(
    const ir::Graph& graph, const std::vector<NodeFactors>& factors, int lists) {
  RowOwner owner(graph, factors);
  SPMD_ASSIGN_OR_RETURN(const ir::Graph next, RewrittenBy(owner, graph));
  std::vector<std::optional<OwnedOutput>> outputs;
  for (size_t k = 0; k + lists < next.outputs().size(); ++k) {
    outputs.push_back(owner.OutputOf(next, k, lists));
  }
  return outputs;
}

}  // namespace spmd::partition
