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

bool SameAxes(const Sharding& a, const Sharding& b) {
  return std::equal(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(),
                    [](const DimSharding& x, const DimSharding& y) { return x.axes == y.axes; }) &&
         a.unreduced == b.unreduced && a.manual == b.manual;
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

}  // namespace

ir::Fingerprint OpsOf(const ir::Graph& graph) {
  ir::Fingerprinter print;
  AddOps(graph, print);
  return print.Finish();
}

bool HasOpsOf(const SearchedPlan& plan, const ir::Graph& graph) {
  return static_cast<int>(plan.nodes.size()) == graph.num_nodes() &&
         plan.inputs.size() == graph.inputs().size() && OpsOf(graph) == plan.ops;
}

bool InputsLieAsIn(const SearchedPlan& plan, const ir::Graph& graph) {
  for (size_t k = 0; k < graph.inputs().size(); ++k) {
    const ir::Annotation& annotation = *graph.value(graph.inputs()[k]).annotation;
    if (!SameAxes(plan.inputs[k], annotation.sharding)) return false;
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
