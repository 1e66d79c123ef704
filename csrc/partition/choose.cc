// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/choose.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "csrc/partition/partial_plan.h"
#include "csrc/partition/plan_options.h"
#include "csrc/partition/plan_price.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

using propagate::NodeFactors;

constexpr int kSweeps = 4;
constexpr int64_t kMaxCombinations = 2048;

class Chooser {
 public:
  Chooser(const ir::Graph& graph, const std::vector<NodeFactors>& factors, PlanMemo& memo)
      : graph_(graph),
        factors_(factors),
        memo_(memo),
        plan_(graph, factors),
        options_(plan_),
        price_(plan_, memo) {}

  Chosen Run() && {
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      plan_.TakeNews(id);
      Decide(id);
    }
    Sweep(/*first=*/1);
    GatherShared();
    CarryMovesOn();
    CarryGathersBack();
    const double seconds = price_.Total();
    return {std::move(plan_).TakePlans(), seconds};
  }

 private:
  // Decides again, backward and forward in turns, what depends on decisions that have changed.
  void Sweep(int first) {
    const int n = graph_.num_nodes();
    for (int sweep = first; sweep < kSweeps; ++sweep) {
      for (int i = 0; i < n; ++i) {
        const ir::NodeId id = sweep % 2 == 0 ? i : n - 1 - i;
        if (plan_.TakeNews(id)) Decide(id);
      }
    }
  }

  void Decide(ir::NodeId id) {
    const NodePlan* best = Cheapest(id, [](const NodePlan&) { return true; });
    SPMD_CHECK(best != nullptr, graph_.node(id).op, " has no legal plan");
    plan_.Adopt(id, *best);
  }

  // The cheapest plan of node `id` among those that `admits` accepts; null if it accepts none.
  template <typename Fn>
  const NodePlan* Cheapest(ir::NodeId id, Fn&& admits) {
    const ir::Node& node = graph_.node(id);
    const NodeFactors& nf = factors_[id];
    const int grid = plan_.GridOf(node);
    const NodeOptions candidates = options_.Of(id, grid);
    const std::vector<std::vector<Option>>& options = candidates.by_group;
    int64_t combinations = 1;
    for (const auto& o : options) {
      combinations = std::min(combinations * static_cast<int64_t>(o.size()), 2 * kMaxCombinations);
    }
    std::vector<Option> best_options(options.size());
    const NodePlan* best = nullptr;
    double best_cost = std::numeric_limits<double>::infinity();
    auto consider = [&](const std::vector<Option>& chosen) {
      const PlanMemo::Planned& planned = memo_.Plan(
          graph_, node, nf, options_.MakeChoice(id, grid, chosen, candidates.wishes), grid);
      if (!planned.plan || !admits(*planned.plan)) return;
      const bool takes_over =
          std::any_of(chosen.begin(), chosen.end(), [](const Option& o) { return o.takes_over; });
      const double cost = price_.Of(id, *planned.plan, planned.work, takes_over);
      if (cost >= best_cost * (1 - 1e-12)) return;
      best_cost = cost;
      best = &*planned.plan;
      best_options = chosen;
    };
    if (combinations <= kMaxCombinations) {
      std::vector<size_t> at(options.size(), 0);
      std::vector<Option> chosen(options.size());
      for (int64_t c = 0; c < combinations; ++c) {
        for (size_t g = 0; g < options.size(); ++g) chosen[g] = options[g][at[g]];
        consider(chosen);
        for (size_t g = 0; g < options.size() && ++at[g] == options[g].size(); ++g) at[g] = 0;
      }
    } else {
      // One group is changed at a time, starting from the best so far, major axes first.
      for (int round = 0; round < 2; ++round) {
        for (size_t g = 0; g < options.size(); ++g) {
          std::vector<Option> chosen = best_options;
          for (const Option& o : options[g]) {
            chosen[g] = o;
            consider(chosen);
          }
        }
      }
    }
    // To shard nothing is always legal.
    if (best == nullptr) consider(std::vector<Option>(options.size()));
    return best;
  }

  // A weight that many products use (a loop over time) is gathered once for all of them, which no
  // product alone pays for. For each such weight it is tried to gather it, and to decide anew what
  // depends on that.
  void GatherShared() {
    constexpr int kMany = 3;
    for (ir::ValueId v = 0; v < graph_.num_values(); ++v) {
      if (plan_.produced(v).UsedAxes() == 0 || !IsWeight(v)) continue;
      std::set<ir::NodeId> products, sharded;
      for (const ir::NodeId user : plan_.users(v)) {
        if (factors_[user].rule == nullptr || !IsContraction(factors_[user])) continue;
        products.insert(user);
        if (!ReadsWhole(user, plan_.of(user), v)) sharded.insert(user);
      }
      if (static_cast<int>(products.size()) >= kMany && !sharded.empty()) TryGather(v, sharded);
    }
  }

  // Whether the value is an input, or follows from one by ops of one operand that are no products.
  bool IsWeight(ir::ValueId v) const {
    for (ir::NodeId id = graph_.value(v).producer; id != ir::kNoNode;
         id = graph_.value(v).producer) {
      const ir::Node& node = graph_.node(id);
      if (node.operands.size() != 1 || IsContraction(factors_[id])) return false;
      v = node.operands[0];
    }
    return true;
  }

  bool ReadsWhole(ir::NodeId id, const NodePlan& plan, ir::ValueId v) const {
    const ir::Node& node = graph_.node(id);
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (node.operands[k] == v && plan.operands[k].UsedAxes() != 0) return false;
    }
    return true;
  }

  void TryGather(ir::ValueId v, const std::set<ir::NodeId>& readers) {
    plan_.BeginTrial();
    for (const ir::NodeId id : readers) {
      const NodePlan* const plan =
          Cheapest(id, [&](const NodePlan& p) { return ReadsWhole(id, p, v); });
      if (plan != nullptr) plan_.Adopt(id, *plan);
    }
    Sweep(/*first=*/0);
    KeepIfCheaper();
  }

  // If there is a move in front of a chain of views and casts and its inverse behind the chain, no
  // node of the chain gains by changing its sharding alone. Therefore each move in front of such an
  // op is carried past everything that follows, as far as possible, and stays there if the total is
  // cheaper.
  void CarryMovesOn() {
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (factors_[id].rule == nullptr || IsContraction(factors_[id])) continue;
      const ir::Node& node = graph_.node(id);
      for (size_t k = 0; k < node.operands.size(); ++k) {
        const ir::ValueId v = node.operands[k];
        if (v == ir::kNoValue || plan_.grid(v) != plan_.of(id).grid) continue;
        if (plan_.produced(v).IsUnreduced() || plan_.of(id).operands[k].IsUnreduced()) continue;
        if (price_.OfMove(v, plan_.produced(v), plan_.grid(v), plan_.of(id).operands[k],
                          plan_.of(id).grid) <= 2 * memo_.prices().latency) {
          continue;
        }
        CarryFrom(id, [&](ir::NodeId at, const NodePlan& p) {
          return TakesAsMade(at, p, [](ir::ValueId) { return true; });
        });
      }
    }
  }

  // A gather behind an op that widens its operand (a weight in eight bits that is scaled before it
  // is used) sends fewer bytes in front of it, but no node of the chain between them gains alone.
  void CarryGathersBack() {
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const ir::Node& node = graph_.node(id);
      if (factors_[id].rule == nullptr || !factors_[id].rule->elementwise) continue;
      for (size_t k = 0; k < node.operands.size(); ++k) {
        const ir::ValueId v = node.operands[k];
        if (v == ir::kNoValue || plan_.grid(v) != plan_.of(id).grid) continue;
        const TensorType &narrow = graph_.type(v), &wide = graph_.type(node.first_result);
        if (narrow.dims != wide.dims || narrow.ByteSize() >= wide.ByteSize()) continue;
        const Sharding target = Without(plan_.produced(v), GatheredBehind(id));
        if (target == plan_.produced(v)) continue;
        std::set<ir::ValueId> chain;
        CarryFrom(id, [&](ir::NodeId at, const NodePlan& p) {
          for (int r = 0; r < graph_.node(at).num_results; ++r) {
            chain.insert(graph_.node(at).first_result + r);
          }
          if (at == id) return p.operands[k] == target;
          return TakesAsMade(at, p, [&](ir::ValueId u) { return chain.contains(u); });
        });
      }
    }
  }

  // Whether the plan takes those operands that `concerns` names as they are made.
  template <typename Fn>
  bool TakesAsMade(ir::NodeId id, const NodePlan& plan, Fn&& concerns) const {
    const ir::Node& node = graph_.node(id);
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v != ir::kNoValue && concerns(v) && plan.operands[k] != plan_.produced(v)) return false;
    }
    return true;
  }

  static AxisList AxesOf(const Sharding& sharding) {
    AxisList axes;
    for (const DimSharding& dim : sharding.dims) {
      axes.insert(axes.end(), dim.axes.begin(), dim.axes.end());
    }
    return axes;
  }

  // The axes that shard `from` and not `to`; none if one of them is unreduced.
  static AxisList Gathered(const Sharding& from, const Sharding& to) {
    AxisList axes;
    if (from.IsUnreduced() || to.IsUnreduced()) return axes;
    const AxisList kept = AxesOf(to);
    for (const AxisId axis : AxesOf(from)) {
      if (!absl::c_linear_search(kept, axis)) axes.push_back(axis);
    }
    return axes;
  }

  static Sharding Without(Sharding sharding, const AxisList& axes) {
    for (DimSharding& dim : sharding.dims) {
      const size_t before = dim.axes.size();
      dim.axes.erase(std::remove_if(dim.axes.begin(), dim.axes.end(),
                                    [&](AxisId axis) { return absl::c_linear_search(axes, axis); }),
                     dim.axes.end());
      if (dim.axes.size() != before) dim.chunk = 0;
    }
    return sharding;
  }

  // The axes that the nearest gather behind the node ends, with no contraction in between.
  AxisList GatheredBehind(ir::NodeId start) const {
    std::vector<ir::NodeId> chain = {start};
    for (size_t i = 0; i < chain.size() && i < kLongest; ++i) {
      const ir::Node& node = graph_.node(chain[i]);
      for (int r = 0; r < node.num_results; ++r) {
        const ir::ValueId v = node.first_result + r;
        AxisList axes = Gathered(plan_.of(chain[i]).results[r], plan_.produced(v));
        if (!axes.empty()) return axes;
        for (const ir::NodeId user : plan_.users(v)) {
          if (factors_[user].rule == nullptr || plan_.of(user).grid != plan_.grid(v)) continue;
          const ir::Node& reader = graph_.node(user);
          for (size_t k = 0; k < reader.operands.size(); ++k) {
            if (reader.operands[k] != v) continue;
            axes = Gathered(plan_.produced(v), plan_.of(user).operands[k]);
            if (!axes.empty()) return axes;
          }
          if (!IsContraction(factors_[user])) chain.push_back(user);
        }
      }
    }
    return {};
  }

  static constexpr size_t kLongest = 32;

  // Adopts the cheapest plan that `admits` accepts for `start` and for what follows it, as long as
  // there is one and the total becomes cheaper.
  template <typename Fn>
  void CarryFrom(ir::NodeId start, Fn&& admits) {
    plan_.BeginTrial();
    std::set<ir::NodeId> todo = {start};
    for (size_t adopted = 0; !todo.empty() && adopted < kLongest;) {
      const ir::NodeId id = *todo.begin();
      todo.erase(todo.begin());
      const ir::Node& node = graph_.node(id);
      const NodePlan* plan = Cheapest(id, [&](const NodePlan& p) { return admits(id, p); });
      if (plan == nullptr) continue;  // the move stays in front of this node
      ++adopted;
      plan_.Adopt(id, *plan);
      for (int r = 0; r < node.num_results; ++r) {
        const ir::ValueId v = node.first_result + r;
        for (ir::NodeId user : plan_.users(v)) {
          if (factors_[user].rule == nullptr || IsContraction(factors_[user])) continue;
          if (plan_.NeedsMove(user)) todo.insert(user);
        }
      }
    }
    KeepIfCheaper();
  }

  // Ends a trial, and takes its changes back unless what they affect has become cheaper.
  void KeepIfCheaper() {
    PartialPlan::Changes changes = plan_.EndTrial();
    std::vector<ir::NodeId> nodes;
    for (const auto& [id, plan] : changes) nodes.push_back(id);
    const double after = price_.Around(nodes);
    plan_.Exchange(changes);
    if (after < price_.Around(nodes) * (1 - 1e-9)) {
      plan_.Exchange(changes);
    } else {
      plan_.ForgetNews();
    }
  }

  const ir::Graph& graph_;
  const std::vector<NodeFactors>& factors_;
  PlanMemo& memo_;
  PartialPlan plan_;
  const PlanOptions options_;
  PlanPrice price_;
};

// Whether all shards of each factor have one size, and no chunk of its own. Otherwise their
// boundaries belong to the sizes for which they were chosen.
bool CutsEvenly(const Grid& grid, const NodeFactors& nf, const propagate::Cut& cut) {
  for (size_t f = 0; f < cut.size(); ++f) {
    if (cut[f].axes.empty()) continue;
    if (cut[f].chunk != 0 || nf->factors[f].size % grid.size(cut[f].axes) != 0) return false;
  }
  return true;
}

std::vector<int64_t> SizesOf(const NodeFactors& nf) {
  std::vector<int64_t> sizes;
  for (const rules::Factor& factor : nf->factors) sizes.push_back(factor.size);
  return sizes;
}

bool FitsSizes(const SearchedPlan::Node& earlier, const Grid& grid, const NodeFactors& nf) {
  if (earlier.choice.cut.size() != nf->factors.size()) return false;
  if (!earlier.sizes.empty()) return earlier.sizes == SizesOf(nf);
  return CutsEvenly(grid, nf, earlier.choice.cut);
}

}  // namespace

Chosen Choose(const ir::Graph& graph, const std::vector<NodeFactors>& factors, PlanMemo& memo) {
  return Chooser(graph, factors, memo).Run();
}

std::vector<SearchedPlan::Node> ForLater(const std::vector<NodePlan>& plans, const ir::Graph& graph,
                                         const std::vector<NodeFactors>& factors) {
  std::vector<SearchedPlan::Node> nodes;
  nodes.reserve(plans.size());
  for (size_t id = 0; id < plans.size(); ++id) {
    const NodePlan& plan = plans[id];
    SearchedPlan::Node& node = nodes.emplace_back(SearchedPlan::Node{plan.grid, plan.choice, {}});
    const bool even = CutsEvenly(graph.grid(plan.grid), factors[id], plan.choice.cut);
    if (!even) node.sizes = SizesOf(factors[id]);
  }
  return nodes;
}

std::optional<std::vector<NodePlan>> ChooseAs(const std::vector<SearchedPlan::Node>& earlier,
                                              const ir::Graph& graph,
                                              const std::vector<NodeFactors>& factors,
                                              PlanMemo& memo) {
  std::vector<NodePlan> plans;
  plans.reserve(graph.num_nodes());
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const SearchedPlan::Node& node = earlier[id];
    if (!FitsSizes(node, graph.grid(node.grid), factors[id])) return std::nullopt;
    const std::optional<NodePlan>& plan =
        memo.Plan(graph, graph.node(id), factors[id], node.choice, node.grid).plan;
    if (!plan) return std::nullopt;
    plans.push_back(*plan);
  }
  return plans;
}

}  // namespace spmd::partition
