// SPDX-License-Identifier: Apache-2.0
#include "csrc/propagate/propagate.h"

#include <algorithm>
#include <array>

#include "csrc/propagate/factor_cut.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::propagate {
namespace {

using rules::OpFactors;

// One operand or result of a node.
struct Slot {
  ir::ValueId value;
  const rules::TensorFactors* factors;
};

// The stages in order. Each propagates the factors that it admits.
struct Stage {
  const char* name;
  // Visits only element-wise ops and views.
  bool simple_ops_only;
  bool reduced_factors;
  // Also takes axes from operands that are broadcast to their result.
  bool broadcasts;
};
constexpr std::array<Stage, 4> kStages = {{
    {"element-wise and views", true, false, false},
    {"pass factors", false, false, false},
    {"reduced factors", false, true, false},
    {"broadcasts", false, true, true},
}};

class Propagator {
 public:
  Propagator(ir::Graph& graph, const std::vector<NodeFactors>& factors, Reasons& reasons,
             Preference preference)
      : graph_(graph), factors_(factors), reasons_(reasons), preference_(preference) {
    for (const NodeFactors& nf : factors) forms_.push_back(FormOf(*nf));
  }

  // Returns whether the preference ever decided between two tensors.
  bool Run(absl::Span<const Proposal> proposals) {
    Seed();
    for (const Proposal& p : proposals) Start(p);
    visited_.assign(graph_.num_nodes(), 0);
    for (const Stage& stage : kStages) {
      stage_ = &stage;
      ForgetVisits();
      // Each sweep carries an axis along whole chains in its direction, so that a handful of rounds
      // reaches the fixed point.
      for (int round = 0; round < 16; ++round) {
        changed_ = false;
        for (ir::NodeId n = 0; n < graph_.num_nodes(); ++n) Visit(n);
        BufferEdges();
        for (ir::NodeId n = graph_.num_nodes() - 1; n >= 0; --n) Visit(n);
        if (!changed_) break;
      }
    }
    Finish();
    return preference_decided_;
  }

 private:
  void Seed() {
    is_state_.assign(graph_.num_values(), false);
    if (preference_ == Preference::kActivations) {
      for (const ir::Output& output : graph_.outputs()) {
        if (output.becomes != ir::kNoValue) is_state_[output.becomes] = true;
      }
      for (const ir::ValueId v : graph_.inputs()) {
        const std::optional<ir::Annotation>& annotation = graph_.value(v).annotation;
        if (annotation.has_value() && annotation->of_parameter) is_state_[v] = true;
      }
    }
    changed_at_.assign(graph_.num_values(), 0);
    is_cut_.assign(graph_.num_values(), false);
    shardings_.resize(graph_.num_values());
    grid_of_.assign(graph_.num_values(), -1);
    for (ir::ValueId v = 0; v < graph_.num_values(); ++v) {
      const ir::Value& value = graph_.value(v);
      if (value.annotation && value.annotation->hold != ir::Hold::kDerived) {
        shardings_[v] = value.annotation->sharding;
        grid_of_[v] = value.annotation->grid;
        for (int d = 0; d < value.type.rank(); ++d) {
          for (AxisId a : shardings_[v].dims[d].axes) {
            reasons_.Add({v, d, a, ir::kNoValue, ir::kNoNode, "annotation"});
          }
        }
      } else {
        shardings_[v] = Sharding::Open(value.type.rank());
      }
      is_cut_[v] = shardings_[v].DimAxes() != 0;
      if (value.manual == 0) continue;
      shardings_[v].manual = AxesIn(value.manual);
      grid_of_[v] = value.manual_grid;
    }
  }

  void Start(const Proposal& proposal) {
    const ir::ValueId v = proposal.value;
    const AxisMask manual = graph_.value(v).manual;
    if (grid_of_[v] >= 0 && (manual == 0 || is_cut_[v])) return;
    shardings_[v] = proposal.sharding;
    shardings_[v].manual = AxesIn(manual);
    is_cut_[v] = shardings_[v].DimAxes() != 0;
    grid_of_[v] = proposal.grid;
    for (int d = 0; d < shardings_[v].rank(); ++d) {
      shardings_[v].dims[d].open = proposal.may_grow;
      for (AxisId a : shardings_[v].dims[d].axes) {
        reasons_.Add({v, d, a, ir::kNoValue, graph_.value(v).producer, "shared work"});
      }
    }
  }

  // Values that no axis reaches are put in the grid of the first annotation, so that using them
  // with other values needs no change of grid.
  int DefaultGrid() const {
    for (ir::ValueId v = 0; v < graph_.num_values(); ++v) {
      if (grid_of_[v] >= 0) return grid_of_[v];
    }
    return 0;
  }

  void Finish() {
    const int default_grid = DefaultGrid();
    for (ir::ValueId v = 0; v < graph_.num_values(); ++v) {
      const ir::Value& value = graph_.value(v);
      if (value.annotation && value.annotation->hold != ir::Hold::kDerived) {
        // An open dimension of a committed annotation keeps the axes that reached it.
        if (value.annotation->sharding == shardings_[v]) continue;
        ir::Annotation annotation = *value.annotation;
        annotation.sharding = shardings_[v];
        graph_.Annotate(v, std::move(annotation));
        continue;
      }
      graph_.Annotate(v, {grid_of_[v] >= 0 ? grid_of_[v] : default_grid, shardings_[v].Closed(),
                          ir::Hold::kDerived});
    }
  }

  // The properties of a node that stages ask for.
  struct Form {
    bool simple = true;    // element-wise or a view
    bool reduces = false;  // has a factor that can be sharded and is in no result
  };
  static Form FormOf(const OpFactors& f) {
    Form form;
    form.simple = f.windows.empty();
    for (size_t i = 0; i < f.factors.size(); ++i) {
      if (f.factors[i].whole) form.simple = false;
      if (!f.factors[i].whole && !f.InAnyResult(static_cast<int>(i))) form.reduces = true;
      for (size_t r = 0; r < f.results.size(); ++r) {
        if (!f.InResult(static_cast<int>(i), static_cast<int>(r))) form.simple = false;
      }
    }
    return form;
  }

  // Makes a stage visit again the nodes for which it admits more than the previous stage. The
  // second stage admits nothing more for a node that the first visited: simple ops have no other
  // factors, and the others were not visited.
  void ForgetVisits() {
    if (!stage_->broadcasts && !stage_->reduced_factors) return;
    for (size_t n = 0; n < forms_.size(); ++n) {
      if (stage_->broadcasts ? forms_[n].simple : forms_[n].reduces) visited_[n] = 0;
    }
  }

  bool Admits(const NodeFactors& nf, int factor) const {
    const bool in_result = nf->InAnyResult(factor);
    if (nf->factors[factor].whole) {
      // Sharding a whole factor only helps where a decomposition can use it.
      return in_result && nf.rule != nullptr && nf.rule->decompose != nullptr;
    }
    return in_result || stage_->reduced_factors;
  }

  void Visit(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodeFactors& nf = factors_[id];
    if (nf->factors.empty()) return;
    if (!HasNews(id)) return;
    if (stage_->simple_ops_only && !forms_[id].simple) return;
    visited_[id] = ++clock_;
    slots_.clear();
    int grid = node.manual != 0 ? node.manual_grid : -1;
    int64_t largest = 0;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i] == ir::kNoValue) continue;
      slots_.push_back({node.operands[i], &nf->operands[i]});
    }
    const size_t num_operands = slots_.size();
    for (int r = 0; r < node.num_results; ++r) {
      slots_.push_back({node.first_result + r, &nf->results[r]});
    }
    for (size_t s = 0; s < slots_.size(); ++s) {
      const ir::ValueId v = slots_[s].value;
      if (grid < 0 && is_cut_[v] && node.manual == 0) grid = grid_of_[v];
      largest = std::max(largest, graph_.type(v).NumElements());
    }
    if (grid < 0) return;
    // Before the broadcast stage, simple ops ignore operands that are smaller than the largest
    // tensor.
    const bool simple = !stage_->broadcasts && forms_[id].simple;
    Cut merged(nf->factors.size());
    std::vector<int> from(nf->factors.size(), -1);
    for (size_t s = 0; s < slots_.size(); ++s) {
      const ir::ValueId v = slots_[s].value;
      if (!is_cut_[v] || grid_of_[v] != grid) continue;
      if (simple && s < num_operands && graph_.type(v).NumElements() < largest) continue;
      Merge(node, nf, static_cast<int>(s),
            CutOf(*nf, *slots_[s].factors, graph_.type(v).dims, shardings_[v], graph_.grid(grid)),
            merged, from);
    }
    Disentangle(merged, from);
    CutBorder(node, *nf, merged);
    for (const Slot& slot : slots_) Project(id, nf, slot, merged, from, grid);
  }

  // True if a tensor of the node has changed since the node was visited.
  bool HasNews(ir::NodeId id) const {
    const int64_t last = visited_[id];
    if (last == 0) return true;
    const ir::Node& node = graph_.node(id);
    for (ir::ValueId v : node.operands) {
      if (v != ir::kNoValue && changed_at_[v] > last) return true;
    }
    for (int r = 0; r < node.num_results; ++r) {
      if (changed_at_[node.first_result + r] > last) return true;
    }
    return false;
  }

  void Changed(ir::ValueId v) {
    changed_at_[v] = ++clock_;
    changed_ = is_cut_[v] = true;
  }

  // Merges `cut`, that of slot s, into the node's `merged`: the longer list wins where one extends
  // the other, the stronger tensor where they conflict.
  void Merge(const ir::Node& node, const NodeFactors& nf, int s, const Cut& cut, Cut& merged,
             std::vector<int>& from) {
    for (size_t f = 0; f < cut.size(); ++f) {
      if (cut[f].axes.empty() || !Admits(nf, static_cast<int>(f))) continue;
      if (MaskOf(cut[f].axes) & node.manual) continue;
      if (from[f] < 0 || Beats(s, cut[f], from[f], merged[f])) {
        merged[f] = cut[f];
        from[f] = s;
      }
    }
  }

  bool Beats(int s, const FactorShard& challenger, int t, const FactorShard& holder) const {
    const AxisList& a = challenger.axes;
    const AxisList& b = holder.axes;
    const size_t common = std::min(a.size(), b.size());
    if (std::equal(a.begin(), a.begin() + common, b.begin()) && a.size() != b.size()) {
      return a.size() > b.size();
    }
    return IsStronger(slots_[s].value, slots_[t].value);
  }

  bool IsStronger(ir::ValueId v, ir::ValueId w) const {
    const bool larger = graph_.type(v).ByteSize() > graph_.type(w).ByteSize();
    if (is_state_[v] == is_state_[w]) return larger;
    preference_decided_ = preference_decided_ || larger != is_state_[w];
    return is_state_[w];
  }

  // Makes every axis shard at most one factor of a node: the factor whose axes come from the
  // stronger tensor keeps it.
  void Disentangle(Cut& merged, std::vector<int>& from) const {
    for (size_t f = 0; f < merged.size(); ++f) {
      for (size_t g = f + 1; g < merged.size(); ++g) {
        if (!(MaskOf(merged[f].axes) & MaskOf(merged[g].axes))) continue;
        const bool f_loses = IsStronger(slots_[from[g]].value, slots_[from[f]].value);
        FactorShard& loser = merged[f_loses ? f : g];
        const AxisMask taken = MaskOf(merged[f_loses ? g : f].axes);
        size_t keep = 0;
        while (keep < loser.axes.size() && !(MaskOf(loser.axes[keep]) & taken)) ++keep;
        loser.axes.erase(loser.axes.begin() + keep, loser.axes.end());
        loser.chunk = 0;
      }
    }
  }

  // Extends the sharding of one tensor by the node's merged cut, dimension by dimension.
  void Project(ir::NodeId id, const NodeFactors& nf, const Slot& slot, const Cut& merged,
               const std::vector<int>& from, int grid) {
    const ir::ValueId v = slot.value;
    if (grid_of_[v] >= 0 && grid_of_[v] != grid) return;
    Sharding& current = shardings_[v];
    const auto may_grow = [&](int d) {
      if (!current.dims[d].open) return false;
      size_t axes = 0;
      for (int f : (*slot.factors)[d]) axes += merged[f].axes.size();
      return axes > current.dims[d].axes.size();
    };
    bool any = false;
    for (int d = 0; d < current.rank() && !any; ++d) any = may_grow(d);
    if (!any) return;
    std::optional<Sharding> target =
        ShardingUnder(*nf, *slot.factors, graph_.type(v).dims, merged, graph_.grid(grid));
    if (!target) return;
    for (int d = 0; d < current.rank(); ++d) {
      DimSharding& have = current.dims[d];
      const DimSharding& want = target->dims[d];
      if (!have.open || want.axes.size() <= have.axes.size()) continue;
      if (!std::equal(have.axes.begin(), have.axes.end(), want.axes.begin())) continue;
      AxisMask elsewhere = current.UsedAxes() & ~MaskOf(have.axes);
      if (MaskOf(want.axes) & elsewhere) continue;
      for (size_t k = have.axes.size(); k < want.axes.size(); ++k) {
        reasons_.Add({v, d, want.axes[k], SourceOf(*slot.factors, d, from, v), id, stage_->name});
      }
      have.axes = want.axes;
      have.chunk = want.chunk;
      grid_of_[v] = grid;
      Changed(v);
    }
  }

  ir::ValueId SourceOf(const rules::TensorFactors& factors, int d, const std::vector<int>& from,
                       ir::ValueId self) const {
    for (int f : factors[d]) {
      if (from[f] >= 0 && slots_[from[f]].value != self) return slots_[from[f]].value;
    }
    return ir::kNoValue;
  }

  // Propagates between a buffer's old and new value, which must have one sharding.
  void BufferEdges() {
    for (const ir::Output& output : graph_.outputs()) {
      if (output.becomes == ir::kNoValue) continue;
      Copy(output.becomes, output.value);
      Copy(output.value, output.becomes);
    }
  }

  void Copy(ir::ValueId from, ir::ValueId to) {
    if (!is_cut_[from] || from == to) return;
    if (grid_of_[to] >= 0 && grid_of_[to] != grid_of_[from]) return;
    for (int d = 0; d < shardings_[to].rank(); ++d) {
      DimSharding& have = shardings_[to].dims[d];
      const DimSharding& want = shardings_[from].dims[d];
      if (!have.open || want.axes.size() <= have.axes.size()) continue;
      if (!std::equal(have.axes.begin(), have.axes.end(), want.axes.begin())) continue;
      if (MaskOf(want.axes) & shardings_[to].UsedAxes() & ~MaskOf(have.axes)) continue;
      for (size_t k = have.axes.size(); k < want.axes.size(); ++k) {
        reasons_.Add({to, d, want.axes[k], from, ir::kNoNode, "buffer"});
      }
      have.axes = want.axes;
      have.chunk = want.chunk;
      grid_of_[to] = grid_of_[from];
      Changed(to);
    }
  }

  ir::Graph& graph_;
  const std::vector<NodeFactors>& factors_;
  std::vector<Form> forms_;  // by node
  Reasons& reasons_;
  const Preference preference_;
  std::vector<Sharding> shardings_;
  std::vector<bool> is_cut_;    // by value: some dimension has axes
  std::vector<int> grid_of_;    // by value; -1 if not yet known
  std::vector<bool> is_state_;  // by value; only set where state is the weaker
  std::vector<Slot> slots_;     // of the node being visited
  const Stage* stage_ = nullptr;
  // When values changed and when nodes were visited, in ticks of a clock that both advance.
  int64_t clock_ = 0;
  std::vector<int64_t> changed_at_;
  std::vector<int64_t> visited_;
  bool changed_ = false;
  mutable bool preference_decided_ = false;
};

}  // namespace

void Propagate(ir::Graph& graph, const std::vector<NodeFactors>& factors, Reasons& reasons,
               Preference preference, absl::Span<const Proposal> proposals,
               bool* preference_decided) {
  const bool decided = Propagator(graph, factors, reasons, preference).Run(proposals);
  if (preference_decided != nullptr) *preference_decided = decided;
}

}  // namespace spmd::propagate
