// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/choose.h"

#include <algorithm>
#include <limits>
#include <set>

#include "csrc/cost/move.h"
#include "csrc/rules/op_call.h"
#include "csrc/util/box.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

using propagate::Cut;
using propagate::CutOf;
using propagate::NodeFactors;

constexpr int kSweeps = 4;
constexpr int64_t kMaxCombinations = 2048;
// A tie-breaker: terms pass through an op whose linear operands are all terms, and are reduced
// early where a replicated operand would have to become a term.
constexpr double kThroughBonus = 1e-15;
// Weights on their way to their first contraction, and gradients after their last one, move while
// other work runs. What lies between waits for its collectives.
constexpr double kOffPathWeight = 0.125;
// Terms may be reduced later, when they have passed through what follows; or not.
constexpr double kUndecidedWeight = 0.5;

// Axes of a grid that occur only side by side in every annotation of the graph.
std::vector<AxisList> AxisGroups(const ir::Graph& graph, int grid) {
  const int n = graph.grid(grid).num_axes();
  std::vector<bool> joined(n, true);  // axis a with a + 1
  AxisMask in_use = 0;
  auto note = [&](const AxisList& list) {
    in_use |= MaskOf(list);
    for (int a = 0; a + 1 < n; ++a) {
      auto at = std::find(list.begin(), list.end(), a);
      const bool has_next = std::find(list.begin(), list.end(), a + 1) != list.end();
      if (at == list.end() ? has_next : (at + 1 == list.end() || *(at + 1) != a + 1)) {
        joined[a] = false;
      }
    }
  };
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const auto& annotation = graph.value(v).annotation;
    if (!annotation || annotation->grid != grid) continue;
    for (const DimSharding& d : annotation->sharding.dims) {
      if (!d.axes.empty()) note(d.axes);
    }
    if (annotation->sharding.IsUnreduced()) note(annotation->sharding.unreduced);
  }
  std::vector<AxisList> groups;
  for (int a = 0; a < n; ++a) {
    if (!(in_use & MaskOf(static_cast<AxisId>(a)))) continue;
    if (!groups.empty() && groups.back().back() == a - 1 && joined[a - 1]) {
      groups.back().push_back(static_cast<AxisId>(a));
    } else {
      groups.push_back({static_cast<AxisId>(a)});
    }
  }
  return groups;
}

class Chooser {
 public:
  Chooser(const ir::Graph& graph, const std::vector<NodeFactors>& factors, PlanMemo& memo)
      : graph_(graph),
        factors_(factors),
        memo_(memo),
        machine_(memo.machine()),
        users_(graph.Users()) {
    for (size_t g = 0; g < graph.grids().size(); ++g) {
      groups_.push_back(AxisGroups(graph, static_cast<int>(g)));
    }
    plans_.resize(graph.num_nodes());
    decided_.assign(graph.num_nodes(), false);
    has_news_.assign(graph.num_nodes(), false);
    for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
      proposals_.push_back(graph.value(v).annotation->sharding.Closed());
      produced_.push_back(proposals_.back());
      grid_of_.push_back(graph.value(v).annotation->grid);
    }
    off_path_ = OffPath();
    outputs_of_.resize(graph.num_values());
    for (const ir::Output& output : graph.outputs()) outputs_of_[output.value].push_back(&output);
  }

  Chosen Run() {
    const int n = graph_.num_nodes();
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      for (int i = 0; i < n; ++i) {
        const ir::NodeId id = sweep % 2 == 0 ? i : n - 1 - i;
        if (sweep == 0 || has_news_[id]) Decide(id);
      }
    }
    CarryMovesOn();
    const double seconds = TotalSeconds();
    return {std::move(plans_), seconds};
  }

 private:
  // Of the whole plan: every op once, every move once.
  double TotalSeconds() {
    double seconds = 0;
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const ir::Node& node = graph_.node(id);
      seconds += memo_.Work(graph_, node, factors_[id], plans_[id]) +
                 HaloSeconds(node, factors_[id], plans_[id]);
      for (int r = 0; r < node.num_results; ++r) {
        seconds += ResultSeconds(node.first_result + r, plans_[id].results[r], plans_[id].grid);
      }
    }
    for (ir::ValueId v : graph_.inputs()) seconds += ResultSeconds(v, produced_[v], grid_of_[v]);
    return seconds;
  }

  const Sharding& Proposal(ir::ValueId v) const { return proposals_[v]; }

  // By value: no contraction leads to it, or none follows from it.
  std::vector<bool> OffPath() const {
    std::vector<bool> before(graph_.num_values(), true), after(graph_.num_values(), true);
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const ir::Node& node = graph_.node(id);
      bool free = factors_[id].rule != nullptr && !IsContraction(factors_[id]);
      for (ir::ValueId v : node.operands) free = free && (v == ir::kNoValue || before[v]);
      for (int r = 0; r < node.num_results; ++r) before[node.first_result + r] = free;
    }
    for (ir::NodeId id = graph_.num_nodes() - 1; id >= 0; --id) {
      const ir::Node& node = graph_.node(id);
      bool free = factors_[id].rule != nullptr && !IsContraction(factors_[id]);
      for (int r = 0; r < node.num_results; ++r) free = free && after[node.first_result + r];
      if (free) continue;
      for (ir::ValueId v : node.operands) {
        if (v != ir::kNoValue) after[v] = false;
      }
    }
    std::vector<bool> off(graph_.num_values());
    for (ir::ValueId v = 0; v < graph_.num_values(); ++v) off[v] = before[v] || after[v];
    return off;
  }

  // What a group of axes does at a node.
  struct Option {
    enum Kind { kNone, kFactor, kThrough } kind = kNone;
    int index = 0;  // the factor; the linear operand or Choice::kJointly
    ReduceKind reduce = ReduceKind::kSum;
    bool takes_over = false;  // a factor that nobody wished for, see MayTakeOver
  };

  int GridOf(const ir::Node& node) const {
    for (ir::ValueId v : node.operands) {
      if (v != ir::kNoValue && produced_[v].UsedAxes() != 0) return grid_of_[v];
    }
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      if (Proposal(v).UsedAxes() != 0) return graph_.value(v).annotation->grid;
    }
    if (node.operands.empty() || node.operands[0] == ir::kNoValue) {
      return graph_.value(node.first_result).annotation->grid;
    }
    return grid_of_[node.operands[0]];
  }

  // The layouts from which a node's candidates are read: what its operands come in, what
  // propagation proposes, what the users of its results want.
  template <typename Fn>
  void ForEachWish(const ir::Node& node, const NodeFactors& nf, int grid, Fn&& fn) const {
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v == ir::kNoValue) continue;
      const bool as_produced = grid_of_[v] == grid;
      if (as_produced) fn(v, nf->operands[k], produced_[v]);
      if (graph_.value(v).annotation->grid != grid) continue;
      if (!as_produced || produced_[v] != Proposal(v)) fn(v, nf->operands[k], Proposal(v));
    }
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      const bool as_proposed = graph_.value(v).annotation->grid == grid;
      if (as_proposed) fn(v, nf->results[r], Proposal(v));
      for (ir::NodeId user : users_[v]) {
        if (!decided_[user] || plans_[user].grid != grid) continue;
        const ir::Node& u = graph_.node(user);
        for (size_t k = 0; k < u.operands.size(); ++k) {
          if (u.operands[k] != v) continue;
          const Sharding& wanted = plans_[user].operands[k];
          if (!as_proposed || wanted != Proposal(v)) fn(v, nf->results[r], wanted);
        }
      }
    }
  }

  // A factor and axes that want it but do not fall on its boundaries.
  using Unaligned = std::vector<std::pair<int, AxisMask>>;

  std::vector<std::vector<Option>> OptionsOf(const ir::Node& node, const NodeFactors& nf, int grid,
                                             std::vector<Cut>& wishes) const {
    const std::vector<AxisList>& groups = groups_[grid];
    std::vector<std::vector<Option>> options(groups.size());
    Unaligned unaligned;
    ForEachWish(node, nf, grid,
                [&](ir::ValueId v, const rules::TensorFactors& tensor, const Sharding& s) {
                  if (s.DimAxes() == 0) return;
                  Cut cut = CutOf(*nf, tensor, graph_.type(v).dims, s, graph_.grid(grid));
                  NoteUnaligned(nf, tensor, s, cut, unaligned);
                  if (std::find(wishes.begin(), wishes.end(), cut) == wishes.end()) {
                    wishes.push_back(std::move(cut));
                  }
                });
    std::vector<std::pair<int, ReduceKind>> through;
    for (size_t g = 0; g < groups.size(); ++g) {
      const AxisMask mask = MaskOf(groups[g]);
      // First the cuts, in order of the factors, so that ties go to working on less.
      for (size_t f = 0; f < nf->factors.size(); ++f) {
        if (nf->factors[f].whole) continue;
        for (const Cut& wish : wishes) {
          if (MaskOf(wish[f].axes) & mask) {
            options[g].push_back({Option::kFactor, static_cast<int>(f)});
            break;
          }
        }
      }
      for (size_t f = 0; f < nf->factors.size(); ++f) {
        AddTakeOver(nf, wishes, unaligned, mask, f, options[g]);
      }
      if (!options[g].empty() && MustCut(node, nf, grid, mask)) continue;
      options[g].push_back({});
      AddThrough(node, nf, groups[g], options[g]);
    }
    return options;
  }

  // Axes that cut what the op needs whole may cut factor f of the same tensor instead: matrices are
  // dealt out by an all-to-all, where gathering them would have every device work on all.
  static bool MayTakeOver(const NodeFactors& nf, const Cut& wish, AxisMask axes, int f) {
    if (nf->factors[f].whole || nf->factors[f].size < 2 || !nf->InAnyResult(f)) return false;
    for (size_t w = 0; w < nf->factors.size(); ++w) {
      if (!nf->factors[w].whole || !(MaskOf(wish[w].axes) & axes)) continue;
      for (size_t k = 0; k < nf->operands.size(); ++k) {
        const int operand = static_cast<int>(k);
        if (nf->InOperand(static_cast<int>(w), operand) && nf->InOperand(f, operand)) return true;
      }
    }
    return false;
  }

  // [25] cut in 13 and 12 as [5, 5]: three rows and two. The major factor takes the axes, and what
  // lies across a boundary is sent.
  static void NoteUnaligned(const NodeFactors& nf, const rules::TensorFactors& tensor,
                            const Sharding& s, const Cut& cut, Unaligned& unaligned) {
    for (size_t d = 0; d < tensor.size(); ++d) {
      const rules::DimFactors& dim = tensor[d];
      if (dim.size() < 2 || s.dims[d].axes.empty()) continue;
      if (nf->factors[dim[0]].whole || nf->factors[dim[0]].size < 2) continue;
      const bool dealt =
          std::any_of(dim.begin(), dim.end(), [&](int f) { return !cut[f].axes.empty(); });
      if (!dealt) unaligned.emplace_back(dim[0], MaskOf(s.dims[d].axes));
    }
  }

  static void AddTakeOver(const NodeFactors& nf, const std::vector<Cut>& wishes,
                          const Unaligned& unaligned, AxisMask axes, size_t f,
                          std::vector<Option>& options) {
    const int factor = static_cast<int>(f);
    for (const Option& o : options) {
      if (o.kind == Option::kFactor && o.index == factor) return;
    }
    const bool wanted =
        std::any_of(wishes.begin(), wishes.end(),
                    [&](const Cut& wish) { return MayTakeOver(nf, wish, axes, factor); }) ||
        std::any_of(unaligned.begin(), unaligned.end(),
                    [&](const auto& u) { return u.first == factor && (u.second & axes); });
    if (!wanted) return;
    options.push_back({Option::kFactor, factor, ReduceKind::kSum, /*takes_over=*/true});
  }

  // Work on many operand elements per result, and on neighbours, is shared by the axes that cut an
  // operand, not done again on each of their devices behind a gather. Except where these axes cut
  // something else right after: then gathering (a weight, say) is what the user asked for.
  bool MustCut(const ir::Node& node, const NodeFactors& nf, int grid, AxisMask axes) const {
    if (nf.rule == nullptr) return false;
    bool cut = false, reduces = !nf->windows.empty();
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v == ir::kNoValue || grid_of_[v] != grid) continue;
      for (size_t d = 0; d < nf->operands[k].size(); ++d) {
        if (!(MaskOf(produced_[v].dims[d].axes) & axes)) continue;
        for (int f : nf->operands[k][d]) cut = cut || !nf->factors[f].whole;
      }
    }
    for (size_t f = 0; f < nf->factors.size(); ++f) {
      reduces = reduces || (!nf->InAnyResult(static_cast<int>(f)) && nf->factors[f].size > 1);
    }
    if (!cut || !reduces) return false;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      if (Proposal(v).DimAxes() & axes) continue;
      for (ir::NodeId user : users_[v]) {
        const ir::Node& u = graph_.node(user);
        for (int s = 0; s < u.num_results; ++s) {
          if (Proposal(u.first_result + s).DimAxes() & axes) return false;
        }
      }
    }
    return true;
  }

  void AddThrough(const ir::Node& node, const NodeFactors& nf, const AxisList& group,
                  std::vector<Option>& options) const {
    if (nf.rule == nullptr) return;
    const AxisMask mask = MaskOf(group);
    bool any = false;
    ReduceKind kind = ReduceKind::kSum;
    for (ir::ValueId v : node.operands) {
      if (v != ir::kNoValue && (produced_[v].UnreducedAxes() & mask) == mask) {
        any = true;
        kind = produced_[v].reduce_kind;
      }
    }
    if (!any) return;
    const rules::Linearity linear =
        rules::LinearityOf(*nf.rule, rules::OpCall::Of(graph_, node), kind);
    auto is_term = [&](int k) {
      const Sharding& s = produced_[node.operands[k]];
      return (s.UnreducedAxes() & mask) == mask && s.reduce_kind == kind;
    };
    if (std::any_of(linear.jointly.begin(), linear.jointly.end(), is_term)) {
      options.push_back({Option::kThrough, Choice::kJointly, kind});
    }
    for (int k : linear.each) {
      if (is_term(k)) options.push_back({Option::kThrough, k, kind});
    }
  }

  // The choice that gives each group its option; axes that a factor cannot take are left out. Where
  // a wish has the same axes on a factor, its order and chunk are used.
  Choice MakeChoice(const ir::Node& node, const NodeFactors& nf, int grid,
                    const std::vector<Option>& options, const std::vector<Cut>& wishes) const {
    Choice choice;
    choice.cut.resize(nf->factors.size());
    for (size_t g = 0; g < options.size(); ++g) {
      const AxisList& axes = groups_[grid][g];
      if (options[g].kind == Option::kFactor) {
        AxisList& list = choice.cut[options[g].index].axes;
        list.insert(list.end(), axes.begin(), axes.end());
      } else if (options[g].kind == Option::kThrough) {
        choice.through.insert(choice.through.end(), axes.begin(), axes.end());
        choice.through_operand = options[g].index;
        choice.through_kind = options[g].reduce;
      }
    }
    for (size_t f = 0; f < choice.cut.size(); ++f) {
      AxisList& list = choice.cut[f].axes;
      if (list.empty()) continue;
      const propagate::FactorShard* best = nullptr;
      for (const Cut& wish : wishes) {
        if (wish[f].axes.empty() || (MaskOf(wish[f].axes) & ~MaskOf(list))) continue;
        if (best == nullptr || wish[f].axes.size() > best->axes.size()) best = &wish[f];
      }
      if (best != nullptr) choice.cut[f] = *best;
    }
    return choice;
  }

  void Decide(ir::NodeId id) {
    has_news_[id] = false;
    const NodePlan* best = Cheapest(id, [](const NodePlan&) { return true; });
    SPMD_CHECK(best != nullptr, graph_.node(id).op, " has no legal plan");
    Adopt(id, *best);
  }

  // The cheapest plan of a node among those that `admits` accepts; null when it accepts none.
  template <typename Fn>
  const NodePlan* Cheapest(ir::NodeId id, Fn&& admits) {
    const ir::Node& node = graph_.node(id);
    const NodeFactors& nf = factors_[id];
    const int grid = GridOf(node);
    std::vector<Cut> wishes;
    const std::vector<std::vector<Option>> options = OptionsOf(node, nf, grid, wishes);
    int64_t combinations = 1;
    for (const auto& o : options) {
      combinations = std::min(combinations * static_cast<int64_t>(o.size()), 2 * kMaxCombinations);
    }
    std::vector<Option> best_options(options.size());
    const NodePlan* best = nullptr;
    double best_cost = std::numeric_limits<double>::infinity();
    auto consider = [&](const std::vector<Option>& chosen) {
      const PlanMemo::Planned& planned =
          memo_.Plan(graph_, node, nf, MakeChoice(node, nf, grid, chosen, wishes), grid);
      if (!planned.plan || !admits(*planned.plan)) return;
      const bool takes_over =
          std::any_of(chosen.begin(), chosen.end(), [](const Option& o) { return o.takes_over; });
      const double cost = Price(id, *planned.plan, planned.work, takes_over);
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
      // Group by group from what is best so far, major axes first.
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
    // Nothing cut is always legal.
    if (best == nullptr) consider(std::vector<Option>(options.size()));
    return best;
  }

  // A move in front of a chain of views and casts, and its inverse behind it: no node of the chain
  // gains by changing sides alone. Every move that meets such an op is carried on past all that
  // follows, as far as that goes, and stays there where all is cheaper then.
  void CarryMovesOn() {
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (factors_[id].rule == nullptr || IsContraction(factors_[id])) continue;
      const ir::Node& node = graph_.node(id);
      for (size_t k = 0; k < node.operands.size(); ++k) {
        const ir::ValueId v = node.operands[k];
        if (v == ir::kNoValue || grid_of_[v] != plans_[id].grid) continue;
        if (produced_[v].IsUnreduced() || plans_[id].operands[k].IsUnreduced()) continue;
        if (Seconds(v, produced_[v], grid_of_[v], plans_[id].operands[k], plans_[id].grid) <=
            2 * machine_.latency) {
          continue;
        }
        CarryOn(id);
      }
    }
  }

  void CarryOn(ir::NodeId start) {
    constexpr size_t kLongest = 32;
    std::vector<std::pair<ir::NodeId, NodePlan>> before;
    std::set<ir::NodeId> todo = {start};
    while (!todo.empty() && before.size() < kLongest) {
      const ir::NodeId id = *todo.begin();
      todo.erase(todo.begin());
      const ir::Node& node = graph_.node(id);
      const NodePlan* plan = Cheapest(id, [&](const NodePlan& p) {
        for (size_t k = 0; k < node.operands.size(); ++k) {
          if (node.operands[k] != ir::kNoValue && p.operands[k] != produced_[node.operands[k]]) {
            return false;
          }
        }
        return true;
      });
      if (plan == nullptr) continue;  // the move stays in front of it
      before.emplace_back(id, plans_[id]);
      Adopt(id, *plan);
      for (int r = 0; r < node.num_results; ++r) {
        const ir::ValueId v = node.first_result + r;
        for (ir::NodeId user : users_[v]) {
          if (factors_[user].rule == nullptr || IsContraction(factors_[user])) continue;
          if (NeedsMove(user)) todo.insert(user);
        }
      }
    }
    const double after_seconds = SecondsAround(before);
    for (auto& [id, plan] : before) {
      NodePlan now = plans_[id];
      Adopt(id, std::move(plan));
      plan = std::move(now);
    }
    if (after_seconds < SecondsAround(before) * (1 - 1e-9)) {
      for (auto& [id, plan] : before) Adopt(id, std::move(plan));
    }
  }

  bool NeedsMove(ir::NodeId id) const {
    const ir::Node& node = graph_.node(id);
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v != ir::kNoValue && produced_[v] != plans_[id].operands[k]) return true;
    }
    return false;
  }

  // All that the plans of these nodes bear on: their work, and the moves of what they read and
  // make.
  double SecondsAround(const std::vector<std::pair<ir::NodeId, NodePlan>>& nodes) {
    std::set<ir::ValueId> values;
    double seconds = 0;
    for (const auto& [id, unused] : nodes) {
      const ir::Node& node = graph_.node(id);
      seconds += memo_.Work(graph_, node, factors_[id], plans_[id]) +
                 HaloSeconds(node, factors_[id], plans_[id]);
      for (ir::ValueId v : node.operands) {
        if (v != ir::kNoValue) values.insert(v);
      }
      for (int r = 0; r < node.num_results; ++r) values.insert(node.first_result + r);
    }
    for (ir::ValueId v : values) {
      const ir::NodeId id = graph_.value(v).producer;
      if (id == ir::kNoNode) {
        seconds += ResultSeconds(v, produced_[v], grid_of_[v]);
      } else {
        const size_t r = static_cast<size_t>(v - graph_.node(id).first_result);
        seconds += ResultSeconds(v, plans_[id].results[r], plans_[id].grid);
      }
    }
    return seconds;
  }

  void Adopt(ir::NodeId id, NodePlan plan) {
    const ir::Node& node = graph_.node(id);
    const bool reads_alike =
        decided_[id] && plans_[id].grid == plan.grid && plans_[id].operands == plan.operands;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      const bool as_asked =
          IsConstraint(graph_, v) && !MeetsConstraint(graph_, v, plan.results[r], plan.grid);
      const Sharding& seen = as_asked ? Proposal(v) : plan.results[r];
      const int grid = as_asked ? graph_.value(v).annotation->grid : plan.grid;
      if (produced_[v] == seen && grid_of_[v] == grid) continue;
      produced_[v] = seen;
      grid_of_[v] = grid;
      for (ir::NodeId user : users_[v]) has_news_[user] = true;
    }
    plans_[id] = std::move(plan);
    decided_[id] = true;
    if (!reads_alike) TellOfReading(id);
  }

  // What makes the operands of a node, and what else reads them, goes by how the node does.
  void TellOfReading(ir::NodeId id) {
    for (ir::ValueId v : graph_.node(id).operands) {
      if (v == ir::kNoValue) continue;
      if (graph_.value(v).producer != ir::kNoNode) has_news_[graph_.value(v).producer] = true;
      for (ir::NodeId user : users_[v]) {
        if (user != id) has_news_[user] = true;
      }
    }
  }

  // What follows an axis that takes over knows nothing of it yet, and will take it as it comes.
  double Price(ir::NodeId id, const NodePlan& plan, double work, bool takes_over) {
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
      seconds +=
          ResultSeconds(node.first_result + r, plan.results[r], plan.grid, takes_over ? 0 : 1);
    }
    if (!plan.choice.through.empty()) seconds += ThroughBias(node, nf, plan);
    return seconds;
  }

  double ThroughBias(const ir::Node& node, const NodeFactors& nf, const NodePlan& plan) const {
    if (plan.choice.through_operand != Choice::kJointly) return -kThroughBonus;
    const AxisMask mask = MaskOf(plan.choice.through);
    for (int k :
         rules::LinearityOf(*nf.rule, rules::OpCall::Of(graph_, node), plan.choice.through_kind)
             .jointly) {
      if ((produced_[node.operands[k]].UnreducedAxes() & mask) != mask) return kThroughBonus;
    }
    return -kThroughBonus;
  }

  // Rows that neighbours send for windows that reach beyond the shard.
  double HaloSeconds(const ir::Node& node, const NodeFactors& nf, const NodePlan& plan) const {
    if (nf->windows.empty()) return 0;
    const rules::OpCall call = rules::OpCall::Of(graph_, node);
    double seconds = 0;
    const Grid& grid = graph_.grid(plan.grid);
    for (const rules::Window* w : ActiveWindows(*nf, plan.choice.cut, call.operands)) {
      const propagate::FactorShard& shard = plan.choice.cut[w->factor];
      const TensorType& type = *call.operands[w->operand];
      const DimSharding& held = plan.operands[w->operand].dims[w->dim];
      // In the middle, where nothing of the window lies outside the value; and at the end, to where
      // boundaries have drifted most.
      const int64_t shards = grid.size(shard.axes);
      int64_t rows = 0;
      for (int64_t i : {shards / 2, std::max<int64_t>(shards - 2, 0), shards - 1}) {
        rows = std::max(rows, RowsSent(*w, shard.chunk, type.dims[w->dim], held, i, grid));
      }
      const int64_t own = cost::MaxShardSize(held, type.dims[w->dim], grid);
      const double row_bytes =
          static_cast<double>(cost::TileBytes(type, plan.operands[w->operand], grid)) /
          static_cast<double>(std::max<int64_t>(own, 1));
      const double move =
          machine_.latency + static_cast<double>(rows) * row_bytes /
                                 cost::LinkBandwidth(machine_, grid, MaskOf(held.axes));
      seconds += off_path_[node.operands[w->operand]] ? kOffPathWeight * move : move;
    }
    return seconds;
  }

  // Indices of a dimension of n that shard i needs through a window over shards of `chunk` indices
  // and does not hold.
  static int64_t RowsSent(const rules::Window& w, int64_t chunk, int64_t n, const DimSharding& held,
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
    const int64_t begin = std::clamp<int64_t>(w.begin.Evaluate(env), 0, n);
    const int64_t end = std::clamp<int64_t>(w.end.Evaluate(env), begin, n);
    const int64_t had = std::min(end, own.end) - std::max(begin, own.begin);
    return end - begin - std::max<int64_t>(had, 0);
  }

  double OperandSeconds(ir::NodeId id, ir::ValueId v, const Sharding& wanted, int grid) {
    double best = Seconds(v, produced_[v], grid_of_[v], wanted, grid);
    if (best == 0) return 0;
    for (ir::NodeId user : users_[v]) {
      if (user == id || !decided_[user] || plans_[user].grid != grid) continue;
      const ir::Node& u = graph_.node(user);
      for (size_t k = 0; k < u.operands.size(); ++k) {
        if (u.operands[k] != v) continue;
        const Sharding& there = plans_[user].operands[k];
        if (there == wanted) return 0;
        if (user < id) best = std::min(best, Seconds(v, there, grid, wanted, grid));
      }
    }
    return best;
  }

  // Moves from the produced layout to all that users want, each layout once, each from the nearest
  // layout there is.
  double ResultSeconds(ir::ValueId v, const Sharding& produced, int grid,
                       double undecided_weight = 1) {
    struct Place {
      Sharding sharding;
      int grid;
    };
    absl::InlinedVector<Place, 4> there = {{produced, grid}};
    double seconds = 0;
    auto want = [&](const Sharding& wanted, int wanted_grid) {
      double best = std::numeric_limits<double>::infinity();
      for (const Place& p : there) {
        best = std::min(best, Seconds(v, p.sharding, p.grid, wanted, wanted_grid));
        if (best == 0) return;
      }
      seconds += best;
      there.push_back({wanted, wanted_grid});
    };
    const ir::Annotation& annotation = *graph_.value(v).annotation;
    if (IsConstraint(graph_, v) && !MeetsConstraint(graph_, v, produced, grid)) {
      want(Proposal(v), annotation.grid);
      return seconds;  // users are served from there whatever this node does
    }
    bool undecided = false, optimistic = true, shared = true;
    for (ir::NodeId user : users_[v]) {
      if (!decided_[user]) {
        undecided = true;
        optimistic =
            optimistic && produced.IsUnreduced() && MayPassTerms(user, v, produced.reduce_kind);
        shared = shared && optimistic && MeetsTerms(user, v, produced);
        continue;
      }
      const ir::Node& u = graph_.node(user);
      for (size_t k = 0; k < u.operands.size(); ++k) {
        if (u.operands[k] == v) want(plans_[user].operands[k], plans_[user].grid);
      }
    }
    const double known = seconds;
    if (undecided) want(Proposal(v), annotation.grid);
    if (optimistic) undecided_weight *= shared ? 0 : kUndecidedWeight;
    seconds = known + undecided_weight * (seconds - known);
    for (const ir::Output* output : outputs_of_[v]) {
      if (LeavesAsTerms(graph_, *output, produced, grid)) continue;
      const std::optional<Sharding> required = RequiredAtOutput(graph_, *output);
      if (required) {
        want(*required, graph_.value(output->becomes).annotation->grid);
      } else if (std::none_of(there.begin(), there.end(),
                              [](const Place& p) { return !p.sharding.IsUnreduced(); })) {
        want(produced.Reduced(), grid);
      }
    }
    return seconds;
  }

  bool MayPassTerms(ir::NodeId user, ir::ValueId v, ReduceKind kind) const {
    if (factors_[user].rule == nullptr) return false;
    const ir::Node& node = graph_.node(user);
    const rules::Linearity linear =
        rules::LinearityOf(*factors_[user].rule, rules::OpCall::Of(graph_, node), kind);
    auto is_v = [&](int k) { return node.operands[k] == v; };
    return std::any_of(linear.jointly.begin(), linear.jointly.end(), is_v) ||
           std::any_of(linear.each.begin(), linear.each.end(), is_v);
  }

  // The user adds terms of v to terms that there already are, which are reduced in any case: both
  // gradients of a table that is read twice.
  bool MeetsTerms(ir::NodeId user, ir::ValueId v, const Sharding& terms) const {
    const ir::Node& node = graph_.node(user);
    const rules::Linearity linear = rules::LinearityOf(
        *factors_[user].rule, rules::OpCall::Of(graph_, node), terms.reduce_kind);
    bool jointly = false, met = false;
    for (int k : linear.jointly) {
      const ir::ValueId w = node.operands[k];
      jointly = jointly || w == v;
      met = met || (w != v && produced_[w].IsUnreduced() &&
                    produced_[w].reduce_kind == terms.reduce_kind &&
                    (terms.UnreducedAxes() & ~produced_[w].UnreducedAxes()) == 0);
    }
    return jointly && met;
  }

  double Seconds(ir::ValueId v, const Sharding& from, int from_grid, const Sharding& to,
                 int to_grid) {
    const TensorType& type = graph_.type(v);
    if (from_grid != to_grid) {
      if (from.IsReplicated() && to.IsReplicated() &&
          graph_.grid(from_grid).device_ids() == graph_.grid(to_grid).device_ids()) {
        return 0;
      }
      return machine_.latency +
             cost::TileBytes(type, to, graph_.grid(to_grid)) / SlowestLink(to_grid);
    }
    if (from == to) return 0;
    const double seconds = memo_.MoveSeconds(type, graph_, to_grid, from, to);
    return off_path_[v] ? kOffPathWeight * seconds : seconds;
  }

  // What goes from one grid to another may take any link.
  double SlowestLink(int grid_index) const {
    const Grid& grid = graph_.grid(grid_index);
    AxisMask all = 0;
    for (int a = 0; a < grid.num_axes(); ++a) all |= MaskOf(static_cast<AxisId>(a));
    return cost::LinkBandwidth(machine_, grid, all);
  }

  const ir::Graph& graph_;
  const std::vector<NodeFactors>& factors_;
  PlanMemo& memo_;
  const machine::Machine& machine_;
  std::vector<std::vector<ir::NodeId>> users_;
  std::vector<std::vector<AxisList>> groups_;  // by grid
  std::vector<std::vector<const ir::Output*>> outputs_of_;
  std::vector<NodePlan> plans_;
  std::vector<bool> decided_;
  // By node: whether anything that its decision depends on is another since it was taken.
  std::vector<bool> has_news_;
  std::vector<bool> off_path_;
  std::vector<Sharding> proposals_;  // by value, what propagation says
  std::vector<Sharding> produced_;   // as users find the value
  std::vector<int> grid_of_;
};

}  // namespace

Chosen Choose(const ir::Graph& graph, const std::vector<NodeFactors>& factors, PlanMemo& memo) {
  return Chooser(graph, factors, memo).Run();
}

std::optional<Sharding> RequiredAtOutput(const ir::Graph& graph, const ir::Output& output) {
  if (output.becomes == ir::kNoValue) return std::nullopt;
  return graph.value(output.becomes).annotation->sharding.Closed().Reduced();
}

bool LeavesAsTerms(const ir::Graph& graph, const ir::Output& output, const Sharding& produced,
                   int grid) {
  if (!output.may_stay_unreduced || !produced.IsUnreduced()) return false;
  const ir::ValueId model = output.becomes != ir::kNoValue ? output.becomes : output.value;
  const ir::Annotation& asked = *graph.value(model).annotation;
  if (asked.grid != grid || asked.hold == ir::Hold::kCommitted) return false;
  const TensorType& type = graph.type(output.value);
  return cost::TileBytes(type, produced, graph.grid(grid)) <=
         cost::TileBytes(type, asked.sharding.Closed(), graph.grid(grid));
}

bool IsConstraint(const ir::Graph& graph, ir::ValueId value) {
  const ir::Value& v = graph.value(value);
  return v.producer != ir::kNoNode && v.annotation && v.annotation->hold == ir::Hold::kCommitted;
}

bool MeetsConstraint(const ir::Graph& graph, ir::ValueId value, const Sharding& made, int grid) {
  const ir::Annotation& asked = *graph.value(value).annotation;
  if (grid != asked.grid || made.IsUnreduced() || asked.sharding.IsUnreduced()) return false;
  for (int d = 0; d < made.rank(); ++d) {
    if (made.dims[d].axes != asked.sharding.dims[d].axes) return false;
    // No more on one device than was asked for, but for a little.
    const int64_t n = graph.type(value).dims[d];
    const int64_t most = cost::MaxShardSize(asked.sharding.dims[d], n, graph.grid(grid));
    if (20 * cost::MaxShardSize(made.dims[d], n, graph.grid(grid)) > 21 * most) return false;
  }
  return std::none_of(graph.outputs().begin(), graph.outputs().end(),
                      [&](const ir::Output& output) { return output.value == value; });
}

}  // namespace spmd::partition
