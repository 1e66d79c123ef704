// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/joined_graph.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "csrc/ir/part.h"
#include "csrc/partition/lane_factors.h"
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

JoinedGraph::JoinedGraph(const ir::Graph& like, const std::vector<NodePlan>& old)
    : old_(old), graph_(ir::EmptyLike(like)) {}

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

bool JoinedGraph::Want(ir::ValueId v, WantedPlan wanted) {
  for (size_t r = 0; r < wanted.results.size(); ++r) {
    graph_.Annotate(v + static_cast<int>(r),
                    {wanted.grid, wanted.results[r].Reduced(), ir::Hold::kDerived});
  }
  const ir::NodeId id = graph_.value(v).producer;
  const rules::OpCall call = rules::OpCall::Of(graph_, graph_.node(id));
  const rules::Rule* const rule = rules::Find(call.op);
  bool can = false;
  if (rule != nullptr) {
    absl::StatusOr<rules::OpFactors> factors = rules::FactorsOf(*rule, call);
    can = factors.ok() &&
          PlanAsWanted(id, wanted,
                       {rule, std::make_shared<const rules::OpFactors>(*std::move(factors))});
  }
  wanted_.resize(graph_.num_nodes());
  wanted_[id] = std::move(wanted);
  return can;
}

ir::ValueId JoinedGraph::Call(const ir::Node& like, const std::string& op,
                              std::vector<ir::ValueId> operands, Attributes attributes, int updates,
                              WantedPlan wanted, absl::Span<const TensorType> types) {
  const rules::Rule* const rule = rules::Find(op);
  if (rule == nullptr) return ir::kNoValue;
  rules::OpCall call;
  call.op = op;
  const bool same_op = op == like.op;
  if (same_op) call.groups.assign(like.groups.begin(), like.groups.end());
  for (const ir::ValueId v : operands) {
    call.operands.push_back(v == ir::kNoValue ? nullptr : &graph_.type(v));
  }
  call.attributes = &attributes;
  absl::StatusOr<std::vector<TensorType>> inferred =
      std::vector<TensorType>(types.begin(), types.end());
  if (types.empty() || rule->types != nullptr) inferred = rules::InferTypes(*rule, call);
  if (!inferred.ok() || inferred->size() != wanted.results.size() ||
      (!types.empty() && *inferred != types)) {
    return ir::kNoValue;
  }
  ir::Graph::NodeSpec spec;
  spec.op = op;
  spec.operands.assign(operands.begin(), operands.end());
  if (same_op) spec.groups = like.groups;
  spec.attributes = std::move(attributes);
  spec.updates = updates;
  spec.task = like.task;
  spec.source = like.source;
  const ir::ValueId v = graph_.result(graph_.AddNode(std::move(spec), *inferred));
  return Want(v, std::move(wanted)) ? v : ir::kNoValue;
}

ir::ValueId JoinedGraph::View(const ir::Node& like, int grid, ir::ValueId v, const Dims& dims,
                              const Sharding& from, Sharding to) {
  const ir::ValueId before = BeforeReshape(v, dims);
  const Sharding* const known = before == ir::kNoValue ? nullptr : WantedSharding(before);
  if (before == v) return from == to ? v : ir::kNoValue;
  if (known != nullptr && *known == to) return before;
  // A view of a view is one of what that one views.
  const WantedPlan* const made = WantedOf(v);
  if (made != nullptr && made->old == ir::kNoNode && made->results[0] == from) {
    const ir::Node& node = graph_.node(graph_.value(v).producer);
    if (rules::FactsOf(node.op).dims == rules::DimsUse::kReshapes) {
      const Sharding of_source = made->operands[0];
      const ir::ValueId view = View(like, grid, node.operands[0], dims, of_source, to);
      if (view != ir::kNoValue) return view;
    }
  }
  std::vector<ir::ValueId>& views = views_[v];
  for (const ir::ValueId view : views) {
    const WantedPlan& wanted = *WantedOf(view);
    if (graph_.type(view).dims == dims && wanted.grid == grid && wanted.operands[0] == from &&
        wanted.results[0] == to) {
      return view;
    }
  }
  const ir::ValueId view = BuilderFor(like).View(v, ToVector(dims));
  if (!Want(view, {ir::kNoNode, grid, {from}, {std::move(to)}})) return ir::kNoValue;
  views.push_back(view);
  return view;
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
  if (made != nullptr && made->old == ir::kNoNode && made->results[0] == sharding) {
    const ir::Node& product = graph_.node(graph_.value(v).producer);
    const std::optional<rules::MatrixProduct>& form = rules::FactsOf(product.op).product;
    if (form.has_value() && MultipliesMatrices(product.operands)) {
      // (L R)ᵀ = Rᵀ Lᵀ
      const WantedPlan wanted{
          made->old, made->grid, {made->operands[1], made->operands[0]}, {ordered}};
      const ir::ValueId other = Product(like, {!form->right_transposed, !form->left_transposed},
                                        product.operands[1], product.operands[0], "", wanted);
      if (other != ir::kNoValue) return other;
    }
  }
  if (made != nullptr && made->old == ir::kNoNode && made->results[0] == sharding) {
    const ir::ValueId composed = PermutedBefore(like, grid, v, order);
    if (composed != ir::kNoValue) return composed;
  }
  for (const ir::ValueId known : permuted_[v]) {
    const WantedPlan& wanted = *WantedOf(known);
    if (OrderOf(known) == order && wanted.grid == grid && wanted.operands[0] == sharding) {
      return known;
    }
  }
  const ir::ValueId permuted = BuilderFor(like).Permute(v, order);
  if (!Want(permuted, {ir::kNoNode, grid, {sharding}, {ordered}})) return ir::kNoValue;
  permuted_[v].push_back(permuted);
  return permuted;
}

// A permutation of a permutation is one. So it is if dimensions were merged in between.
ir::ValueId JoinedGraph::PermutedBefore(const ir::Node& like, int grid, ir::ValueId v,
                                        const std::vector<int64_t>& order) {
  const WantedPlan made = *WantedOf(v);
  const ir::NodeId producer = graph_.value(v).producer;
  const ir::ValueId source =
      graph_.node(producer).operands.empty() ? ir::kNoValue : graph_.node(producer).operands[0];
  if (IsPermuted(v)) {
    const std::vector<int64_t> before = OrderOf(v);
    std::vector<int64_t> composed;
    for (const int64_t d : order) composed.push_back(before[d]);
    if (!std::is_sorted(composed.begin(), composed.end())) {
      return Permuted(like, grid, source, composed, made.operands[0]);
    }
    const Sharding* const known = WantedSharding(source);
    return known != nullptr && *known == made.operands[0] ? source : ir::kNoValue;
  }
  // A matrix that is transposed is read as it was by products.
  if (order.size() == 2 || !IsReshaped(v) || !IsPermuted(source)) return ir::kNoValue;
  const Dims &from = graph_.type(source).dims, &to = graph_.type(v).dims;
  std::vector<std::vector<int64_t>> merged(to.size());
  size_t next = 0;
  for (size_t d = 0; d < to.size(); ++d) {
    int64_t size = 1;
    while (next < from.size() && (size < to[d] || (from[next] == 1 && d + 1 == to.size()))) {
      size *= from[next];
      merged[d].push_back(static_cast<int64_t>(next++));
    }
    if (size != to[d]) return ir::kNoValue;
  }
  if (next != from.size()) return ir::kNoValue;
  std::vector<int64_t> before;
  Dims dims;
  for (const int64_t d : order) {
    before.insert(before.end(), merged[d].begin(), merged[d].end());
    dims.push_back(to[d]);
  }
  const ir::ValueId permuted = Permuted(like, grid, source, before, made.operands[0]);
  if (permuted == ir::kNoValue) return permuted;
  return View(like, grid, permuted, dims, WithOrder(made.operands[0], before),
              WithOrder(made.results[0], order));
}

const WantedPlan* JoinedGraph::WantedOf(ir::ValueId v) const {
  const ir::NodeId producer = graph_.value(v).producer;
  return producer == ir::kNoNode ? nullptr : &wanted_[producer];
}

const Sharding* JoinedGraph::WantedSharding(ir::ValueId v) const {
  const WantedPlan* const wanted = WantedOf(v);
  if (wanted == nullptr || wanted->old != ir::kNoNode) return nullptr;
  return &wanted->results[v - graph_.node(graph_.value(v).producer).first_result];
}

const Sharding& JoinedGraph::MadeSharding(ir::ValueId v) const {
  const ir::NodeId producer = graph_.value(v).producer;
  if (producer == ir::kNoNode) return graph_.value(v).annotation->sharding;
  const WantedPlan& wanted = wanted_[producer];
  const std::vector<Sharding>& results =
      wanted.old == ir::kNoNode ? wanted.results : old_[wanted.old].results;
  return results[v - graph_.node(producer).first_result];
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

ir::ValueId JoinedGraph::WithoutLeadingOnes(ir::ValueId v, Sharding& sharding) const {
  const Dims& dims = graph_.type(v).dims;
  size_t ones = 0;
  Lanes gone;
  while (ones < dims.size() && dims[ones] == 1) {
    gone.push_back({static_cast<int>(ones++), Lane::kEverywhere});
  }
  if (ones == 0 || !(MadeSharding(v) == sharding)) return v;
  const ir::ValueId before = BeforeReshape(v, Dims(dims.begin() + ones, dims.end()));
  if (before == ir::kNoValue) return v;
  sharding = WithoutDims(sharding, gone);
  return before;
}

bool JoinedGraph::IsMadeBy(ir::ValueId v, rules::DimsUse use) const {
  const ir::NodeId producer = graph_.value(v).producer;
  return producer != ir::kNoNode && wanted_[producer].old == ir::kNoNode &&
         rules::FactsOf(graph_.node(producer).op).dims == use;
}

std::vector<int64_t> JoinedGraph::OrderOf(ir::ValueId v) const {
  std::vector<int64_t> order = graph_.node(graph_.value(v).producer).attributes.GetInts("dims");
  for (int64_t& d : order) d += d < 0 ? static_cast<int64_t>(order.size()) : 0;
  return order;
}

ir::ValueId JoinedGraph::BeforeOnes(ir::ValueId v) const {
  while (IsReshaped(v)) {
    const ir::ValueId before = graph_.node(graph_.value(v).producer).operands[0];
    if (WithoutOnes(graph_.type(v).dims) != WithoutOnes(graph_.type(before).dims)) break;
    v = before;
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

bool JoinedGraph::Relates(ir::ValueId v, const rules::OpFactors& factors,
                          absl::Span<const Lanes* const> operands,
                          absl::Span<const Lanes> results) const {
  const rules::OpCall call = rules::OpCall::Of(graph_, graph_.node(graph_.value(v).producer));
  const absl::StatusOr<rules::OpFactors> joined = rules::FactorsOf(*rules::Find(call.op), call);
  return joined.ok() && RelateTheSame(factors, operands, results, *joined);
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

std::optional<Joined> JoinedGraph::Plan() {
  absl::StatusOr<std::vector<propagate::NodeFactors>> factors = propagate::ComputeFactors(graph_);
  if (!factors.ok()) return std::nullopt;
  std::vector<NodePlan> plans;
  for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const WantedPlan& wanted = wanted_[id];
    if (wanted.old != ir::kNoNode) {
      plans.push_back(old_[wanted.old]);
      continue;
    }
    std::optional<NodePlan> plan = PlanAsWanted(id, wanted, (*factors)[id]);
    if (!plan) return std::nullopt;
    plans.push_back(*std::move(plan));
  }
  return Joined{std::move(graph_), *std::move(factors), std::move(plans)};
}

std::optional<NodePlan> JoinedGraph::PlanAsWanted(ir::NodeId id, const WantedPlan& wanted,
                                                  const propagate::NodeFactors& nf) const {
  const ir::Node& node = graph_.node(id);
  const Grid& grid = graph_.grid(wanted.grid);
  Choice choice = wanted.through;
  choice.cut.assign(nf->factors.size(), {});
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
  for (int r = 0; r < node.num_results; ++r) {
    add(nf->results[r], graph_.type(node.first_result + r).dims, wanted.results[r]);
  }
  if (node.operands.size() == 1 && wanted.operands[0].IsUnreduced()) {  // a view of terms
    choice.through = wanted.operands[0].unreduced;
    choice.through_kind = wanted.operands[0].reduce_kind;
  }
  std::optional<NodePlan> plan = PlanNode(graph_, node, nf, std::move(choice), wanted.grid);
  if (!plan || plan->results != wanted.results) return std::nullopt;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] != ir::kNoValue && !(plan->operands[k] == wanted.operands[k])) {
      return std::nullopt;
    }
  }
  return plan;
}

}  // namespace spmd::partition
