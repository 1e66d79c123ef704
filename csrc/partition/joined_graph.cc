// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/joined_graph.h"

#include <algorithm>
#include <utility>

#include "csrc/ir/part.h"
#include "csrc/partition/lane_dims.h"
#include "csrc/partition/rewrite.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/propagate/graph_factors.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

constexpr int64_t kTransposed[] = {1, 0};

}  // namespace

JoinedGraph::JoinedGraph(const ir::Graph& like) {
  for (size_t g = 0; g < like.grids().size(); ++g) {
    graph_.AddGrid(like.grids()[g], like.grid_name(static_cast<int>(g)));
  }
  for (const ir::ScalarKind kind : like.scalars()) graph_.AddScalar(kind);
  for (const std::string& source : like.sources()) graph_.AddSource(source);
}

ir::ValueId JoinedGraph::AddInput(const ir::Graph& from, ir::ValueId v) {
  const ir::ValueId input = graph_.AddInput(from.type(v), from.value(v).name);
  graph_.Annotate(input, *from.value(v).annotation);
  return input;
}

ir::ValueId JoinedGraph::Copy(const ir::Graph& from, ir::NodeId id,
                              absl::Span<const ir::ValueId> operands) {
  const ir::NodeId copy = ir::CopyNode(from, from.node(id), operands, graph_);
  wanted_.resize(graph_.num_nodes());
  wanted_.back() = {.old = id};
  for (int r = 0; r < from.node(id).num_results; ++r) {
    graph_.Annotate(graph_.result(copy, r), *from.value(from.node(id).first_result + r).annotation);
  }
  return graph_.result(copy);
}

rules::Builder JoinedGraph::BuilderFor(const ir::Node& like) {
  return rules::Builder(&graph_, like.task, like.source);
}

void JoinedGraph::Want(ir::ValueId v, WantedPlan wanted) {
  const Sharding any = Sharding::Replicated(graph_.type(v).rank());
  graph_.Annotate(v, {wanted.grid, wanted.result.value_or(any).Reduced(), ir::Hold::kDerived});
  wanted_.resize(graph_.num_nodes());
  wanted_[graph_.value(v).producer] = std::move(wanted);
}

ir::ValueId JoinedGraph::Call(const ir::Node& like, const std::string& op,
                              std::vector<ir::ValueId> operands, Attributes attributes, int updates,
                              WantedPlan wanted) {
  const rules::Rule* const rule = rules::Find(op);
  if (rule == nullptr) return ir::kNoValue;
  rules::OpCall call;
  call.op = op;
  for (const ir::ValueId v : operands) {
    call.operands.push_back(v == ir::kNoValue ? nullptr : &graph_.type(v));
  }
  call.attributes = &attributes;
  const absl::StatusOr<std::vector<TensorType>> types = rules::InferTypes(*rule, call);
  if (!types.ok() || types->size() != 1) return ir::kNoValue;
  ir::Graph::NodeSpec spec;
  spec.op = op;
  spec.operands.assign(operands.begin(), operands.end());
  spec.attributes = std::move(attributes);
  spec.updates = updates;
  spec.task = like.task;
  spec.source = like.source;
  const ir::ValueId v = graph_.Add(std::move(spec), (*types)[0]);
  Want(v, std::move(wanted));
  return v;
}

ir::ValueId JoinedGraph::Product(const ir::Node& like, rules::MatrixProduct form, ir::ValueId left,
                                 ir::ValueId right, absl::string_view own,
                                 const WantedPlan& wanted) {
  const ir::ValueId operands[] = {left, right};
  ir::ValueId before[] = {BeforeTransposition(left), BeforeTransposition(right)};
  for (const int flipped : {3, 1, 2, 0}) {
    if (flipped == 0 && !own.empty()) break;
    if (((flipped & 1) && before[0] == ir::kNoValue) ||
        ((flipped & 2) && before[1] == ir::kNoValue)) {
      continue;
    }
    const rules::MatrixProduct wish{form.left_transposed != ((flipped & 1) != 0),
                                    form.right_transposed != ((flipped & 2) != 0)};
    const rules::Rule* const rule = rules::FindProduct(wish);
    if (rule == nullptr || rule->pattern == nullptr) continue;
    std::vector<ir::ValueId> call;
    WantedPlan turned = wanted;
    for (int k = 0; k < 2; ++k) {
      const bool turn = (flipped & (1 << k)) != 0;
      call.push_back(turn ? before[k] : operands[k]);
      if (turn) turned.operands[k] = WithOrder(wanted.operands[k], kTransposed);
    }
    call.resize(rule->pattern->operands.size(), ir::kNoValue);
    turned.operands.resize(call.size(), Sharding::Replicated(0));
    const ir::ValueId v = Call(like, rule->op, std::move(call), {}, -1, std::move(turned));
    if (v != ir::kNoValue) return v;
  }
  return ir::kNoValue;
}

// A new value: `v`, sharded as `sharding`, with its dimensions in the order `order`. A product is
// computed in this order.
ir::ValueId JoinedGraph::Permuted(const ir::Node& like, int grid, ir::ValueId v,
                                  const std::vector<int64_t>& order, const Sharding& sharding) {
  const Sharding ordered = WithOrder(sharding, order);
  const WantedPlan* const made = WantedOf(v);
  if (made != nullptr && made->old == ir::kNoNode && made->result == sharding) {
    const ir::Node& product = graph_.node(graph_.value(v).producer);
    const std::optional<rules::MatrixProduct>& form = rules::FactsOf(product.op).product;
    if (form.has_value() && MultipliesMatrices(product.operands)) {
      // (L R)ᵀ = Rᵀ Lᵀ
      const WantedPlan wanted{
          made->old, made->grid, {made->operands[1], made->operands[0]}, ordered};
      const ir::ValueId other = Product(like, {!form->right_transposed, !form->left_transposed},
                                        product.operands[1], product.operands[0], "", wanted);
      if (other != ir::kNoValue) return other;
    }
  }
  const ir::ValueId permuted = BuilderFor(like).Permute(v, order);
  Want(permuted, {ir::kNoNode, grid, {sharding}, ordered});
  return permuted;
}

const WantedPlan* JoinedGraph::WantedOf(ir::ValueId v) const {
  const ir::NodeId producer = graph_.value(v).producer;
  return producer == ir::kNoNode ? nullptr : &wanted_[producer];
}

void JoinedGraph::SetWantedResult(ir::ValueId v, Sharding sharding) {
  wanted_[graph_.value(v).producer].result = std::move(sharding);
}

ir::ValueId JoinedGraph::BeforeReshape(ir::ValueId v, const Dims& dims) const {
  while (graph_.type(v).dims != dims) {
    const ir::NodeId producer = graph_.value(v).producer;
    if (producer == ir::kNoNode) return ir::kNoValue;
    const ir::Node& node = graph_.node(producer);
    if (rules::FactsOf(node.op).dims != rules::DimsUse::kReshapes) return ir::kNoValue;
    v = node.operands[0];
  }
  return v;
}

ir::ValueId JoinedGraph::BeforeTransposition(ir::ValueId v) const {
  const ir::NodeId producer = graph_.value(v).producer;
  if (producer == ir::kNoNode || graph_.type(v).rank() != 2) return ir::kNoValue;
  const ir::Node& node = graph_.node(producer);
  if (rules::FactsOf(node.op).dims != rules::DimsUse::kPermutes) return ir::kNoValue;
  const std::vector<int64_t>& dims = node.attributes.GetInts("dims");
  return (dims[0] & 1) == 1 ? node.operands[0] : ir::kNoValue;
}

bool JoinedGraph::MultipliesMatrices(absl::Span<const ir::ValueId> operands) const {
  return operands.size() >= 2 && graph_.type(operands[0]).rank() == 2 &&
         graph_.type(operands[1]).rank() == 2 &&
         std::all_of(operands.begin() + 2, operands.end(),
                     [](ir::ValueId v) { return v == ir::kNoValue; });
}

void JoinedGraph::DropUnused() {
  const std::vector<bool> used = LiveNodes(graph_);
  const auto copy = [](rules::Builder&, const ir::Graph&, ir::NodeId, absl::Span<const ir::ValueId>)
      -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> { return std::nullopt; };
  absl::StatusOr<ir::Graph> kept = Rewrite(graph_, copy, used);
  SPMD_CHECK(kept.ok(), kept.status().ToString());
  std::vector<WantedPlan> wanted;  // kept nodes stay in order
  for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
    if (used[id]) wanted.push_back(std::move(wanted_[id]));
  }
  graph_ = *std::move(kept);
  wanted_ = std::move(wanted);
}

std::optional<Joined> JoinedGraph::Plan(const std::vector<NodePlan>& old) {
  absl::StatusOr<std::vector<propagate::NodeFactors>> factors = propagate::ComputeFactors(graph_);
  if (!factors.ok()) return std::nullopt;
  std::vector<NodePlan> plans;
  for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const WantedPlan& wanted = wanted_[id];
    if (wanted.old != ir::kNoNode) {
      plans.push_back(old[wanted.old]);
      continue;
    }
    std::optional<NodePlan> plan = PlanAsWanted(id, (*factors)[id]);
    if (!plan) return std::nullopt;
    plans.push_back(*std::move(plan));
  }
  return Joined{std::move(graph_), *std::move(factors), std::move(plans)};
}

std::optional<NodePlan> JoinedGraph::PlanAsWanted(ir::NodeId id,
                                                  const propagate::NodeFactors& nf) const {
  const WantedPlan& wanted = wanted_[id];
  const ir::Node& node = graph_.node(id);
  const Grid& grid = graph_.grid(wanted.grid);
  if (!wanted.result) return std::nullopt;
  Choice choice;
  choice.cut.resize(nf->factors.size());
  const auto add = [&](const rules::TensorFactors& tensor, const Dims& dims, const Sharding& s) {
    const propagate::Cut cut = propagate::CutOf(*nf, tensor, dims, s, grid);
    for (size_t f = 0; f < cut.size(); ++f) {
      if (choice.cut[f].axes.empty()) choice.cut[f] = cut[f];
    }
  };
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] == ir::kNoValue) continue;
    add(nf->operands[k], graph_.type(node.operands[k]).dims, wanted.operands[k]);
  }
  add(nf->results[0], graph_.type(node.first_result).dims, *wanted.result);
  std::optional<NodePlan> plan = PlanNode(graph_, node, nf, std::move(choice), wanted.grid);
  if (!plan || !(plan->results[0] == *wanted.result)) return std::nullopt;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] != ir::kNoValue && !(plan->operands[k] == wanted.operands[k])) {
      return std::nullopt;
    }
  }
  return plan;
}

}  // namespace spmd::partition
