// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/plan_price.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "csrc/cost/move.h"
#include "csrc/partition/at_borders.h"
#include "csrc/program/program.h"
#include "csrc/rules/op_call.h"
#include "csrc/util/box.h"

namespace spmd::partition {
namespace {

using propagate::NodeFactors;

// A tie-breaker: partial sums pass through an op whose linear operands are all unreduced, and are
// reduced early if a replicated operand would have to become a partial sum.
constexpr double kThroughBonus = 1e-15;
// Weights on their way to their first contraction, and gradients after their last one, move while
// other work runs. What lies between them waits for its collectives.
constexpr double kOffPathWeight = 0.125;
// Partial sums may be reduced later, after they have passed through what follows, or they may not.
constexpr double kUndecidedWeight = 0.5;
// Partial sums that somebody holds may never be used.
constexpr double kHeldWeight = 0.125;

// By value: true if no contraction leads to it, or none follows from it.
std::vector<bool> OffPath(const ir::Graph& graph, const std::vector<NodeFactors>& factors) {
  std::vector<bool> before(graph.num_values(), true), after(graph.num_values(), true);
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const ir::Node& node = graph.node(id);
    bool free = factors[id].rule != nullptr && !IsContraction(factors[id]);
    for (ir::ValueId v : node.operands) free = free && (v == ir::kNoValue || before[v]);
    for (int r = 0; r < node.num_results; ++r) before[node.first_result + r] = free;
  }
  for (ir::NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    const ir::Node& node = graph.node(id);
    bool free = factors[id].rule != nullptr && !IsContraction(factors[id]);
    for (int r = 0; r < node.num_results; ++r) free = free && after[node.first_result + r];
    if (free) continue;
    for (ir::ValueId v : node.operands) {
      if (v != ir::kNoValue) after[v] = false;
    }
  }
  std::vector<bool> off(graph.num_values());
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) off[v] = before[v] || after[v];
  return off;
}

// The number of indices of a dimension of size `n` that shard i needs through a window over shards
// of `chunk` indices and does not hold.
int64_t RowsSent(const rules::Window& w, int64_t chunk, int64_t n, const DimSharding& held,
                 int64_t i, const Grid& grid) {
  const int64_t shards = grid.size(held.axes);
  const auto shard_of = [&](int64_t extent, int64_t c) {
    const int64_t begin = std::min(i * c, extent);
    return Interval{begin, i == shards - 1 ? extent : std::min(begin + c, extent)};
  };
  const Interval out = shard_of(w.extent, chunk != 0 ? chunk : CeilDiv(w.extent, shards));
  const Interval own = shard_of(n, cost::EffectiveChunk(held, n, grid));
  if (out.empty()) return 0;
  Expr::Env env;
  env.start = [&](TensorRef, int) { return out.begin; };
  env.size = [&](TensorRef, int) { return out.size(); };
  env.extent = [&](TensorRef, int) { return w.extent; };
  env.coord = [](int) { return int64_t{0}; };
  int64_t sent = 0;
  for (const Interval& part :
       program::InOrder(w.order, {w.begin.Evaluate(env), w.end.Evaluate(env)})) {
    const Interval needed = Intersect(part, {0, n});
    sent += needed.size() - Intersect(needed, own).size();
  }
  return sent;
}

}  // namespace

PlanPrice::PlanPrice(const PartialPlan& plan, PlanMemo& memo)
    : plan_(plan),
      memo_(memo),
      graph_(plan.graph()),
      factors_(plan.factors()),
      prices_(memo.prices()),
      off_path_(OffPath(graph_, factors_)) {}

double PlanPrice::Total() {
  double seconds = 0;
  for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const ir::Node& node = graph_.node(id);
    seconds += memo_.Work(graph_, node, factors_[id], plan_.of(id)) +
               HaloSeconds(node, factors_[id], plan_.of(id));
    for (int r = 0; r < node.num_results; ++r) {
      seconds += ResultSeconds(node.first_result + r, plan_.of(id).results[r], plan_.of(id).grid);
    }
  }
  for (ir::ValueId v : graph_.inputs()) {
    seconds += ResultSeconds(v, plan_.produced(v), plan_.grid(v));
  }
  return seconds;
}

double PlanPrice::Around(absl::Span<const ir::NodeId> nodes) {
  std::set<ir::ValueId> values;
  double seconds = 0;
  for (const ir::NodeId id : nodes) {
    const ir::Node& node = graph_.node(id);
    seconds += memo_.Work(graph_, node, factors_[id], plan_.of(id)) +
               HaloSeconds(node, factors_[id], plan_.of(id));
    for (ir::ValueId v : node.operands) {
      if (v != ir::kNoValue) values.insert(v);
    }
    for (int r = 0; r < node.num_results; ++r) values.insert(node.first_result + r);
  }
  for (ir::ValueId v : values) {
    const ir::NodeId id = graph_.value(v).producer;
    if (id == ir::kNoNode) {
      seconds += ResultSeconds(v, plan_.produced(v), plan_.grid(v));
    } else {
      const size_t r = static_cast<size_t>(v - graph_.node(id).first_result);
      seconds += ResultSeconds(v, plan_.of(id).results[r], plan_.of(id).grid);
    }
  }
  return seconds;
}

double PlanPrice::Of(ir::NodeId id, const NodePlan& plan, double work, bool takes_over) {
  const ir::Node& node = graph_.node(id);
  const NodeFactors& nf = factors_[id];
  double seconds = work;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ir::ValueId v = node.operands[k];
    if (v == ir::kNoValue) continue;
    bool repeated = false;
    for (size_t j = 0; j < k; ++j) {
      repeated = repeated || (node.operands[j] == v && plan.operands[j] == plan.operands[k]);
    }
    if (!repeated) seconds += OperandSeconds(id, v, plan.operands[k], plan.grid);
  }
  seconds += HaloSeconds(node, nf, plan);
  for (int r = 0; r < node.num_results; ++r) {
    seconds += ResultSeconds(node.first_result + r, plan.results[r], plan.grid, takes_over ? 0 : 1);
  }
  if (!plan.choice.through.empty()) seconds += ThroughBias(node, nf, plan);
  return seconds;
}

double PlanPrice::OfMove(ir::ValueId v, const Sharding& from, int from_grid, const Sharding& to,
                         int to_grid) {
  const TensorType& type = graph_.type(v);
  if (from_grid != to_grid) {
    if (from.IsReplicated() && to.IsReplicated() &&
        graph_.grid(from_grid).device_ids() == graph_.grid(to_grid).device_ids()) {
      return 0;
    }
    return prices_.latency + cost::TileBytes(type, to, graph_.grid(to_grid)) / SlowestLink(to_grid);
  }
  if (from == to) return 0;
  const double seconds = memo_.MoveSeconds(type, graph_, to_grid, from, to);
  return off_path_[v] ? kOffPathWeight * seconds : seconds;
}

double PlanPrice::ThroughBias(const ir::Node& node, const NodeFactors& nf,
                              const NodePlan& plan) const {
  if (plan.choice.through_operand != Choice::kJointly) return -kThroughBonus;
  const AxisMask mask = MaskOf(plan.choice.through);
  for (int k :
       rules::LinearityOf(*nf.rule, rules::OpCall::Of(graph_, node), plan.choice.through_kind)
           .jointly) {
    if ((plan_.produced(node.operands[k]).UnreducedAxes() & mask) != mask) return kThroughBonus;
  }
  return -kThroughBonus;
}

// The time for the rows that neighbours send, for windows that reach beyond the shard.
double PlanPrice::HaloSeconds(const ir::Node& node, const NodeFactors& nf,
                              const NodePlan& plan) const {
  if (nf->windows.empty()) return 0;
  const rules::OpCall call = rules::OpCall::Of(graph_, node);
  double seconds = 0;
  const Grid& grid = graph_.grid(plan.grid);
  for (const rules::Window* w : ActiveWindows(*nf, plan.choice.cut, call.operands)) {
    const propagate::FactorShard& shard = plan.choice.cut[w->factor];
    const TensorType& type = *call.operands[w->operand];
    const DimSharding& held = plan.operands[w->operand].dims[w->dim];
    // Shards in the middle, where the window does not reach outside the value; and shards at the
    // end, where the boundaries have moved most.
    const int64_t shards = grid.size(shard.axes);
    int64_t rows = 0;
    for (int64_t i : {shards / 2, std::max<int64_t>(shards - 2, 0), shards - 1}) {
      rows = std::max(rows, RowsSent(*w, shard.chunk, type.dims[w->dim], held, i, grid));
    }
    const int64_t own = cost::MaxShardSize(held, type.dims[w->dim], grid);
    const double row_bytes =
        static_cast<double>(cost::TileBytes(type, plan.operands[w->operand], grid)) /
        static_cast<double>(std::max<int64_t>(own, 1));
    const double move = prices_.latency + static_cast<double>(rows) * row_bytes /
                                              cost::LinkBandwidth(prices_, grid, MaskOf(held.axes));
    seconds += off_path_[node.operands[w->operand]] ? kOffPathWeight * move : move;
  }
  return seconds;
}

double PlanPrice::OperandSeconds(ir::NodeId id, ir::ValueId v, const Sharding& wanted, int grid) {
  double best = OfMove(v, plan_.produced(v), plan_.grid(v), wanted, grid);
  if (best == 0) return 0;
  for (ir::NodeId user : plan_.users(v)) {
    if (user == id || !plan_.decided(user) || plan_.of(user).grid != grid) continue;
    const ir::Node& u = graph_.node(user);
    for (size_t k = 0; k < u.operands.size(); ++k) {
      if (u.operands[k] != v) continue;
      const Sharding& there = plan_.of(user).operands[k];
      if (there == wanted) return 0;
      if (user < id) best = std::min(best, OfMove(v, there, grid, wanted, grid));
    }
  }
  return best;
}

// The price of moves from the produced layout to all layouts that users require. Each layout is
// made once, from the nearest one that exists.
double PlanPrice::ResultSeconds(ir::ValueId v, const Sharding& produced, int grid,
                                double undecided_weight) {
  struct Place {
    Sharding sharding;
    int grid;
  };
  absl::InlinedVector<Place, 4> there = {{produced, grid}};
  double seconds = 0;
  auto want = [&](const Sharding& wanted, int wanted_grid) {
    double best = std::numeric_limits<double>::infinity();
    for (const Place& p : there) {
      best = std::min(best, OfMove(v, p.sharding, p.grid, wanted, wanted_grid));
      if (best == 0) return;
    }
    seconds += best;
    there.push_back({wanted, wanted_grid});
  };
  const ir::Annotation& annotation = *graph_.value(v).annotation;
  if (IsConstraint(graph_, v) && !MeetsConstraint(graph_, v, produced, grid)) {
    want(plan_.Proposal(v), annotation.grid);
    return seconds;  // users start from there whatever this node does
  }
  bool undecided = false, optimistic = true, shared = true;
  for (ir::NodeId user : plan_.users(v)) {
    if (!plan_.decided(user)) {
      undecided = true;
      optimistic =
          optimistic && produced.IsUnreduced() && MayPassTerms(user, v, produced.reduce_kind);
      shared = shared && optimistic && MeetsTerms(user, v, produced);
      continue;
    }
    const ir::Node& u = graph_.node(user);
    for (size_t k = 0; k < u.operands.size(); ++k) {
      if (u.operands[k] == v) want(plan_.of(user).operands[k], plan_.of(user).grid);
    }
  }
  const double known = seconds;
  if (undecided) want(plan_.Proposal(v), annotation.grid);
  if (optimistic) undecided_weight *= shared ? 0 : kUndecidedWeight;
  seconds = known + undecided_weight * (seconds - known);
  for (const ir::Output* output : plan_.outputs(v)) {
    const auto reduced = std::find_if(there.begin(), there.end(),
                                      [](const Place& p) { return !p.sharding.IsUnreduced(); });
    if (LeavesAsTerms(graph_, *output, produced, grid)) {
      if (output->held && reduced == there.end()) {
        seconds += kHeldWeight * OfMove(v, produced, grid, produced.Reduced(), grid);
      }
      continue;
    }
    const std::optional<Sharding> required = RequiredAtOutput(graph_, *output);
    if (required) {
      want(*required, graph_.value(output->becomes).annotation->grid);
      continue;
    }
    const Place from = reduced != there.end() ? *reduced : there.front();
    const Sharding leaving = plan_.gradient_layouts().Leaving(*output, from.sharding, from.grid);
    want(leaving, from.grid);
    // What reads it next brings it to the parameter that it is a gradient of.
    double later = std::numeric_limits<double>::infinity();
    for (const Sharding& wish : plan_.gradient_layouts().Of(*output, from.grid)) {
      later = std::min(later, OfMove(v, leaving, from.grid, wish, from.grid));
    }
    if (std::isfinite(later)) seconds += later;
  }
  return seconds;
}

bool PlanPrice::MayPassTerms(ir::NodeId user, ir::ValueId v, ReduceKind kind) const {
  if (factors_[user].rule == nullptr) return false;
  const ir::Node& node = graph_.node(user);
  const rules::Linearity linear =
      rules::LinearityOf(*factors_[user].rule, rules::OpCall::Of(graph_, node), kind);
  auto is_v = [&](int k) { return node.operands[k] == v; };
  return std::any_of(linear.jointly.begin(), linear.jointly.end(), is_v) ||
         std::any_of(linear.each.begin(), linear.each.end(), is_v);
}

// Whether the user adds partial sums of v to other partial sums, which are reduced in any case:
// both gradients of a table that is read twice.
bool PlanPrice::MeetsTerms(ir::NodeId user, ir::ValueId v, const Sharding& terms) const {
  const ir::Node& node = graph_.node(user);
  const rules::Linearity linear =
      rules::LinearityOf(*factors_[user].rule, rules::OpCall::Of(graph_, node), terms.reduce_kind);
  bool jointly = false, met = false;
  for (int k : linear.jointly) {
    const ir::ValueId w = node.operands[k];
    jointly = jointly || w == v;
    met = met || (w != v && plan_.produced(w).IsUnreduced() &&
                  plan_.produced(w).reduce_kind == terms.reduce_kind &&
                  (terms.UnreducedAxes() & ~plan_.produced(w).UnreducedAxes()) == 0);
  }
  return jointly && met;
}

// A move from one grid to another may use any link.
double PlanPrice::SlowestLink(int grid_index) const {
  const Grid& grid = graph_.grid(grid_index);
  AxisMask all = 0;
  for (int a = 0; a < grid.num_axes(); ++a) all |= MaskOf(static_cast<AxisId>(a));
  return cost::LinkBandwidth(prices_, grid, all);
}

}  // namespace spmd::partition
