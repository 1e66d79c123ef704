// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/earlier_plans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace spmd::partition {
namespace {

// Takes the sizes and what else is not the same for another size.
class FormMaker {
 public:
  void Take(const TensorType& type) {
    print_.Add(static_cast<int>(type.dtype)).Add(type.rank());
    for (const int64_t n : type.dims) TakeSize(n);
  }
  void Take(const Sharding& s) {
    print_.Add(s.rank());
    for (const DimSharding& d : s.dims) {
      print_.Add(absl::MakeConstSpan(d.axes)).Add(d.open).Add(d.chunk != 0);
    }
    print_.Add(absl::MakeConstSpan(s.unreduced)).Add(static_cast<int>(s.reduce_kind));
    print_.Add(absl::MakeConstSpan(s.manual));
  }
  // Numbers of dimensions are taken as they are. Others are positions, sizes and repetitions; those
  // that belong to a shape are in the types of the op's results.
  void TakeNumber(const std::string& name, int64_t n) {
    print_.Add(absl::StartsWith(name, "dim") ? n : std::min<int64_t>(n, 2));
  }
  void Take(const Attributes& attributes) {
    Attributes others;
    for (const auto& [name, attr] : attributes) {
      if (const auto* n = std::get_if<int64_t>(&attr)) {
        print_.Add(name);
        TakeNumber(name, *n);
      } else if (const auto* list = std::get_if<std::vector<int64_t>>(&attr)) {
        print_.Add(name).Add(static_cast<int64_t>(list->size()));
        for (const int64_t n : *list) TakeNumber(name, n);
      } else {
        others.Set(name, attr);
      }
    }
    print_.Add(others);
  }

  ir::Fingerprinter& print() { return print_; }
  EarlierPlans::Form Finish() && { return {print_.Finish(), std::move(sizes_)}; }

 private:
  // 0 and 1 are sizes of their own kind: nothing to compute, and a dimension that is broadcast.
  void TakeSize(int64_t n) {
    print_.Add(std::min<int64_t>(n, 2));
    sizes_.push_back(n);
  }

  ir::Fingerprinter print_;
  std::vector<int64_t> sizes_;
};

bool AreNear(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](int64_t m, int64_t n) { return m <= 2 * n && n <= 2 * m; });
}

// Whether propagation may have made `given` of `asked`: open dimensions get axes.
bool MayBecome(const Sharding& asked, const Sharding& given) {
  return std::equal(asked.dims.begin(), asked.dims.end(), given.dims.begin(), given.dims.end(),
                    [](const DimSharding& a, const DimSharding& g) {
                      const size_t n = a.axes.size();
                      if (a.chunk != g.chunk && !a.axes.empty()) return false;
                      if (a.open ? n > g.axes.size() : n != g.axes.size()) return false;
                      return std::equal(a.axes.begin(), a.axes.end(), g.axes.begin());
                    }) &&
         asked.unreduced == given.unreduced && asked.manual == given.manual;
}

// Whether all shards have one size, which then belongs to no size of the value.
bool HasEqualShards(const TensorType& type, const Sharding& sharding,
                    absl::Span<const int64_t> shards) {
  for (int d = 0; d < type.rank(); ++d) {
    if (sharding.dims[d].chunk != 0 || type.dims[d] % shards[d] != 0) return false;
  }
  return true;
}

void AddOps(const ir::Graph& graph, ir::Fingerprinter& print) {
  print.Add(graph.num_nodes());
  for (const ir::Node& node : graph.nodes()) {
    print.Add(node.op).Add(node.num_results).Add(node.updates);
    print.Add(static_cast<int64_t>(node.operands.size()));
    for (const ir::ValueId v : node.operands) print.Add(v);
    for (const ir::OperandGroup& group : node.groups) print.Add(group.begin).Add(group.size);
  }
}

// 128 bits over the ops of a graph and their operands, without sizes.
ir::Fingerprint OpsOf(const ir::Graph& graph) {
  ir::Fingerprinter print;
  AddOps(graph, print);
  return print.Finish();
}

}  // namespace

Annotations::Annotations(const ir::Graph& graph) : ops_(OpsOf(graph)) {
  absl::flat_hash_map<std::pair<int, Sharding>, int> numbers;
  kind_of_.reserve(graph.num_values());
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const ir::Annotation& annotation = *graph.value(v).annotation;
    const auto [it, is_new] = numbers.try_emplace({annotation.grid, annotation.sharding},
                                                  static_cast<int>(kinds_.size()));
    if (is_new) {
      Kind& kind = kinds_.emplace_back(Kind{annotation.grid, annotation.sharding, {}});
      for (const DimSharding& d : kind.sharding.dims) {
        kind.shards.push_back(d.axes.empty() ? 1 : graph.grid(kind.grid).size(d.axes));
      }
    }
    kind_of_.push_back(it->second);
    const Kind& kind = kinds_[it->second];
    if (!HasEqualShards(graph.type(v), kind.sharding, kind.shards)) {
      uneven_.emplace_back(v, graph.type(v).dims);
    }
  }
}

bool Annotations::Fits(const ir::Graph& graph) const {
  if (graph.num_values() != static_cast<int>(kind_of_.size()) || OpsOf(graph) != ops_) return false;
  auto uneven = uneven_.begin();
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const Kind& kind = kinds_[kind_of_[v]];
    const ir::Value& value = graph.value(v);
    if (value.type.rank() != kind.sharding.rank()) return false;
    if (uneven != uneven_.end() && uneven->first == v) {
      if (!(uneven->second == value.type.dims)) return false;
      ++uneven;
    } else if (!HasEqualShards(value.type, kind.sharding, kind.shards)) {
      return false;
    }
    const std::optional<ir::Annotation>& asked = value.annotation;
    if (!asked || asked->hold == ir::Hold::kDerived) continue;
    if (asked->grid != kind.grid || !MayBecome(asked->sharding, kind.sharding)) return false;
  }
  return true;
}

bool Annotations::Take(ir::Graph& graph) const {
  if (!Fits(graph)) return false;
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const Kind& kind = kinds_[kind_of_[v]];
    const std::optional<ir::Annotation>& asked = graph.value(v).annotation;
    if (!asked || asked->hold == ir::Hold::kDerived) {
      graph.Annotate(v, {kind.grid, kind.sharding, ir::Hold::kDerived});
    } else if (!(asked->sharding == kind.sharding)) {
      ir::Annotation annotation = *asked;
      annotation.sharding = kind.sharding;
      graph.Annotate(v, std::move(annotation));
    }
  }
  return true;
}

EarlierPlans::Form EarlierPlans::FormOf(const ir::Graph& graph, const machine::Machine& machine) {
  FormMaker form;
  form.print().Add(machine.flops).Add(machine.memory_bandwidth).Add(machine.link_bandwidth);
  form.print().Add(machine.latency).Add(machine.tile_rows).Add(machine.tile_columns);
  for (const GridPtr& grid : graph.grids()) form.print().Add(*grid);
  AddOps(graph, form.print());
  for (const ir::Node& node : graph.nodes()) form.Take(node.attributes);
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    form.Take(graph.type(v));
    const std::optional<ir::Annotation>& annotation = graph.value(v).annotation;
    const bool asked = annotation && annotation->hold == ir::Hold::kCommitted;
    form.print().Add(asked);
    if (!asked) continue;
    form.print().Add(annotation->grid).Add(annotation->of_parameter);
    form.Take(annotation->sharding);
  }
  for (const ir::Output& output : graph.outputs()) {
    form.print().Add(output.value).Add(output.becomes);
    form.print().Add(output.may_stay_unreduced).Add(output.held);
  }
  return std::move(form).Finish();
}

std::shared_ptr<const SearchedPlan> EarlierPlans::Find(const Form& form) const {
  const auto it = plans_.find(form.common);
  if (it == plans_.end() || !AreNear(it->second.sizes, form.sizes)) return nullptr;
  return it->second.plan;
}

void EarlierPlans::Add(Form form, std::shared_ptr<const SearchedPlan> plan) {
  nodes_ += plan->nodes.size();
  auto [it, is_new] = plans_.try_emplace(form.common);
  if (is_new) {
    order_.push_back(form.common);
  } else {
    nodes_ -= it->second.plan->nodes.size();
  }
  it->second = {std::move(form.sizes), std::move(plan)};
  while (nodes_ > kMaxNodes) {
    const auto oldest = plans_.find(order_.front());
    nodes_ -= oldest->second.plan->nodes.size();
    plans_.erase(oldest);
    order_.pop_front();
  }
}

}  // namespace spmd::partition
