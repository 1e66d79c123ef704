// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/plan_options.h"

#include <algorithm>
#include <utility>

#include "csrc/rules/op_call.h"

namespace spmd::partition {
namespace {

using propagate::Cut;
using propagate::CutOf;
using propagate::NodeFactors;

// Pairs of a factor and the axes that want it but do not shard it at its boundaries.
using Unaligned = std::vector<std::pair<int, AxisMask>>;

// The axes of a grid in groups that occur only side by side in every annotation of the graph.
std::vector<AxisList> AxisGroups(const ir::Graph& graph, int grid) {
  const int n = graph.grid(grid).num_axes();
  std::vector<bool> joined(n, true);  // axis a with axis a + 1
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
    if (!annotation->sharding.manual.empty()) note(annotation->sharding.manual);
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

// Whether factor f may take over axes that shard a factor which the op needs whole, in the same
// tensor. Matrices are then distributed by an all-to-all; a gather would let every device work on
// all of them.
bool MayTakeOver(const NodeFactors& nf, const Cut& wish, AxisMask axes, int f) {
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

// Notes dimensions whose shards do not fall on the boundaries of a factor: [25] sharded as 13 and
// 12 and viewed as [5, 5] becomes three rows and two. The major factor takes the axes, and what
// lies across a boundary is sent.
void NoteUnaligned(const NodeFactors& nf, const rules::TensorFactors& tensor, const Sharding& s,
                   const Cut& cut, Unaligned& unaligned) {
  for (size_t d = 0; d < tensor.size(); ++d) {
    const rules::DimFactors& dim = tensor[d];
    if (dim.size() < 2 || s.dims[d].axes.empty()) continue;
    if (nf->factors[dim[0]].whole || nf->factors[dim[0]].size < 2) continue;
    const bool dealt =
        std::any_of(dim.begin(), dim.end(), [&](int f) { return !cut[f].axes.empty(); });
    if (!dealt) unaligned.emplace_back(dim[0], MaskOf(s.dims[d].axes));
  }
}

void AddTakeOver(const NodeFactors& nf, const std::vector<Cut>& wishes, const Unaligned& unaligned,
                 AxisMask axes, size_t f, std::vector<Option>& options) {
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

}  // namespace

PlanOptions::PlanOptions(const PartialPlan& plan)
    : plan_(plan), graph_(plan.graph()), factors_(plan.factors()) {
  for (size_t g = 0; g < graph_.grids().size(); ++g) {
    groups_.push_back(AxisGroups(graph_, static_cast<int>(g)));
  }
}

// Calls `fn` for each layout from which a node's candidates are read: those in which its operands
// come, those that propagation proposes, those that the users of its results require, and those in
// which gradients had better leave the program.
template <typename Fn>
void PlanOptions::ForEachWish(const ir::Node& node, const NodeFactors& nf, int grid,
                              Fn&& fn) const {
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ir::ValueId v = node.operands[k];
    if (v == ir::kNoValue) continue;
    const bool as_produced = plan_.grid(v) == grid;
    if (as_produced) fn(v, nf->operands[k], plan_.produced(v));
    if (graph_.value(v).annotation->grid != grid) continue;
    if (!as_produced || plan_.produced(v) != plan_.Proposal(v)) {
      fn(v, nf->operands[k], plan_.Proposal(v));
    }
  }
  for (int r = 0; r < node.num_results; ++r) {
    const ir::ValueId v = node.first_result + r;
    const bool as_proposed = graph_.value(v).annotation->grid == grid;
    if (as_proposed) fn(v, nf->results[r], plan_.Proposal(v));
    for (ir::NodeId user : plan_.users(v)) {
      if (!plan_.decided(user) || plan_.of(user).grid != grid) continue;
      const ir::Node& u = graph_.node(user);
      for (size_t k = 0; k < u.operands.size(); ++k) {
        if (u.operands[k] != v) continue;
        const Sharding& wanted = plan_.of(user).operands[k];
        if (!as_proposed || wanted != plan_.Proposal(v)) fn(v, nf->results[r], wanted);
      }
    }
    for (const ir::Output* output : plan_.outputs(v)) {
      for (const Sharding& wanted : plan_.gradient_layouts().Of(*output, grid)) {
        fn(v, nf->results[r], wanted);
      }
    }
  }
}

NodeOptions PlanOptions::Of(ir::NodeId id, int grid) const {
  const ir::Node& node = graph_.node(id);
  const NodeFactors& nf = factors_[id];
  NodeOptions found;
  std::vector<Cut>& wishes = found.wishes;
  const std::vector<AxisList>& groups = groups_[grid];
  std::vector<std::vector<Option>>& options = found.by_group;
  options.resize(groups.size());
  Unaligned unaligned;
  PlanOptions::ForEachWish(
      node, nf, grid, [&](ir::ValueId v, const rules::TensorFactors& tensor, const Sharding& s) {
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
    if (mask & node.manual) {
      options[g].push_back({});
      continue;
    }
    // Options that shard a factor come first, in order of the factors: with equal prices, less work
    // per device is preferred.
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
  return found;
}

// Work on many operand elements per result, or on neighbours, must be shared by the axes that shard
// an operand; a gather would repeat it on each of their devices. The exception is that these axes
// shard something else right after the op: then gathering (a weight, say) is what the user asked
// for.
bool PlanOptions::MustCut(const ir::Node& node, const NodeFactors& nf, int grid,
                          AxisMask axes) const {
  if (nf.rule == nullptr) return false;
  bool cut = false, reduces = !nf->windows.empty();
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ir::ValueId v = node.operands[k];
    if (v == ir::kNoValue || plan_.grid(v) != grid) continue;
    for (size_t d = 0; d < nf->operands[k].size(); ++d) {
      if (!(MaskOf(plan_.produced(v).dims[d].axes) & axes)) continue;
      for (int f : nf->operands[k][d]) cut = cut || !nf->factors[f].whole;
    }
  }
  for (size_t f = 0; f < nf->factors.size(); ++f) {
    reduces = reduces || (!nf->InAnyResult(static_cast<int>(f)) && nf->factors[f].size > 1);
  }
  if (!cut || !reduces) return false;
  for (int r = 0; r < node.num_results; ++r) {
    const ir::ValueId v = node.first_result + r;
    if (plan_.Proposal(v).DimAxes() & axes) continue;
    for (ir::NodeId user : plan_.users(v)) {
      const ir::Node& u = graph_.node(user);
      for (int s = 0; s < u.num_results; ++s) {
        if (plan_.Proposal(u.first_result + s).DimAxes() & axes) return false;
      }
    }
  }
  return true;
}

void PlanOptions::AddThrough(const ir::Node& node, const NodeFactors& nf, const AxisList& group,
                             std::vector<Option>& options) const {
  if (nf.rule == nullptr) return;
  const AxisMask mask = MaskOf(group);
  bool any = false;
  ReduceKind kind = ReduceKind::kSum;
  for (ir::ValueId v : node.operands) {
    if (v != ir::kNoValue && (plan_.produced(v).UnreducedAxes() & mask) == mask) {
      any = true;
      kind = plan_.produced(v).reduce_kind;
    }
  }
  if (!any) return;
  const rules::Linearity linear =
      rules::LinearityOf(*nf.rule, rules::OpCall::Of(graph_, node), kind);
  auto is_term = [&](int k) {
    const Sharding& s = plan_.produced(node.operands[k]);
    return (s.UnreducedAxes() & mask) == mask && s.reduce_kind == kind;
  };
  if (std::any_of(linear.jointly.begin(), linear.jointly.end(), is_term)) {
    options.push_back({Option::kThrough, Choice::kJointly, kind});
  }
  for (int k : linear.each) {
    if (is_term(k)) options.push_back({Option::kThrough, k, kind});
  }
}

Choice PlanOptions::MakeChoice(ir::NodeId id, int grid, absl::Span<const Option> options,
                               absl::Span<const Cut> wishes) const {
  const NodeFactors& nf = factors_[id];
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

}  // namespace spmd::partition
