// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/join_lanes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "csrc/partition/at_borders.h"
#include "csrc/partition/joined_graph.h"
#include "csrc/partition/lane_dims.h"
#include "csrc/partition/lane_factors.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {
namespace {

// A value of the graph without its lanes: `joined` has the value's other dimensions in their order,
// those from which lanes were split in full length.
struct Form {
  ir::ValueId joined = ir::kNoValue;
  Lanes lanes;
  ir::NodeId expand = ir::kNoNode;  // the node that repeats `joined` for lanes that hold the same
};

class Joiner {
 public:
  Joiner(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
         const std::vector<NodePlan>& plans)
      : graph_(graph), factors_(factors), plans_(plans), users_(graph.Users()), result_(graph) {}

  std::optional<Joined> Run() {
    if (!AnyLanes()) return std::nullopt;
    plain_.assign(graph_.num_values(), ir::kNoValue);
    leaves_.assign(graph_.num_values(), false);
    for (const ir::Output& output : graph_.outputs()) leaves_[output.value] = true;
    for (const ir::ValueId v : graph_.inputs()) plain_[v] = result_.AddInput(graph_, v);
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!Join(id)) Copy(id);
    }
    for (ir::Output output : graph_.outputs()) {
      output.value = Plain(output.value);
      if (output.becomes != ir::kNoValue) output.becomes = plain_[output.becomes];
      result_.AddOutput(output);
    }
    result_.DropUnused();
    if (result_.num_nodes() >= graph_.num_nodes()) return std::nullopt;
    return result_.Plan(plans_);
  }

 private:
  const Grid& GridOf(ir::NodeId id) const { return graph_.grid(plans_[id].grid); }
  const Dims& DimsOf(ir::ValueId v) const { return graph_.type(v).dims; }
  const Form* FormOf(ir::ValueId v) const {
    const auto it = forms_.find(v);
    return it == forms_.end() ? nullptr : &it->second;
  }

  // Whether any reshape splits off a dimension of which each device has one index.
  bool AnyLanes() const {
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const ir::Node& node = graph_.node(id);
      if (factors_[id].rule == nullptr) continue;
      if (factors_[id].rule->facts.dims != rules::DimsUse::kReshapes) continue;
      const ir::ValueId r = node.first_result;
      const Lanes lanes = SplitOff(DimsOf(node.operands[0]), DimsOf(r));
      if (!lanes.empty() && JoinedSharding(plans_[id].results[0], DimsOf(r), lanes, GridOf(id))) {
        return true;
      }
    }
    return false;
  }

  // Writes the node without lanes, or remembers its result so. False if it has to be copied.
  bool Join(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const rules::Rule* const rule = factors_[id].rule;
    if (rule == nullptr || node.num_results != 1 || !node.groups.empty()) return false;
    if (node.operands.empty() || node.operands[0] == ir::kNoValue) return false;
    if (const auto it = sums_.find(node.operands[0]); it != sums_.end()) {
      result_.SetWantedResult(it->second, plans_[id].results[0]);
      return BeSame(id, it->second);
    }
    if (!plans_[id].choice.through.empty()) return false;
    const Form* const form = FormOf(node.operands[0]);
    switch (rule->facts.dims) {
      case rules::DimsUse::kReshapes:
        return form == nullptr ? Split(id) : Reshape(id, *form);
      case rules::DimsUse::kPermutes:
        return form != nullptr && Permute(id, *form);
      case rules::DimsUse::kExpands:
        return form == nullptr && Expand(id);
      case rules::DimsUse::kBatches:
      case rules::DimsUse::kSums:
        return Call(id);
      default:
        break;
    }
    if (rule->facts.is_operand) return form != nullptr && Remember(id, *form);
    const bool elementwise = rule->elementwise && !rule->random && rule->local == nullptr;
    return (elementwise || rule->facts.product.has_value()) && Call(id);
  }

  // Remembers the result of a node in a form. False if it has to be there as it is.
  bool Remember(ir::NodeId id, Form form) {
    const ir::ValueId r = graph_.node(id).first_result;
    if (leaves_[r] || IsConstraint(graph_, r)) return false;
    if (!JoinedSharding(plans_[id].results[0], DimsOf(r), form.lanes, GridOf(id))) return false;
    forms_[r] = std::move(form);
    return true;
  }

  // The result of a node is the value `v` of the new graph. False if `v` may not stand for it.
  bool BeSame(ir::NodeId id, ir::ValueId v) {
    const ir::ValueId r = graph_.node(id).first_result;
    if (owned_.size() <= static_cast<size_t>(v)) owned_.resize(v + 1, false);
    const WantedPlan* const wanted = result_.WantedOf(v);
    const bool is_new = wanted != nullptr && wanted->old == ir::kNoNode && !owned_[v];
    if (!is_new && (leaves_[r] || IsConstraint(graph_, r))) return false;
    if (is_new) {
      owned_[v] = true;
      result_.Annotate(v, *graph_.value(r).annotation);
    }
    plain_[r] = v;
    return true;
  }

  bool Split(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const ir::ValueId r = node.first_result;
    const Dims& from = DimsOf(node.operands[0]);
    const Dims& to = DimsOf(r);
    Lanes lanes = SplitOff(from, to);
    if (lanes.empty() || leaves_[r] || IsConstraint(graph_, r)) return false;
    std::optional<Sharding> sharding = JoinedSharding(plans_[id].results[0], to, lanes, GridOf(id));
    if (!sharding) return false;
    ir::ValueId joined = Plain(node.operands[0]);
    const Dims dims = JoinedDims(to, lanes);
    if (dims != from) {  // it also adds or removes dimensions of size 1
      joined = View(id, joined, dims, plans_[id].operands[0], *std::move(sharding));
    }
    return Remember(id, {joined, std::move(lanes)});
  }

  bool Reshape(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const ir::ValueId r = node.first_result;
    const Dims& from = DimsOf(node.operands[0]);
    const Dims& to = DimsOf(r);
    if (form.expand != ir::kNoNode) return false;
    if (AreInPlace(from, form.lanes)) {
      const Dims joined = JoinedDims(from, form.lanes);
      if (joined == to) return BeSame(id, form.joined);
      if (WithoutOnes(joined) == WithoutOnes(to)) return End(id, form);
    }
    const std::vector<int> moved = Moved(from, to);
    if (moved.empty()) return false;
    Lanes lanes;
    for (const Lane lane : form.lanes) {
      if (moved[lane.whole] < 0) return false;
      lanes.push_back({moved[lane.dim], moved[lane.whole]});
    }
    const std::optional<Sharding> operand =
        JoinedSharding(plans_[id].operands[0], from, form.lanes, GridOf(id));
    const std::optional<Sharding> result =
        JoinedSharding(plans_[id].results[0], to, lanes, GridOf(id));
    if (!operand || !result) return false;
    const ir::ValueId joined = View(id, form.joined, JoinedDims(to, lanes), *operand, *result);
    return Remember(id, {joined, std::move(lanes)});
  }

  // A reshape that ends lanes, and adds or removes dimensions of size 1.
  bool End(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const std::optional<Sharding> operand =
        JoinedSharding(plans_[id].operands[0], DimsOf(node.operands[0]), form.lanes, GridOf(id));
    if (!operand) return false;
    return BeSame(
        id, View(id, form.joined, DimsOf(node.first_result), *operand, plans_[id].results[0]));
  }

  // A view in the new graph: `v`, which is sharded as `from`, with the sizes `dims`, sharded as
  // `to`.
  ir::ValueId View(ir::NodeId id, ir::ValueId v, const Dims& dims, const Sharding& from,
                   Sharding to) {
    const ir::ValueId view = result_.BuilderFor(graph_.node(id)).View(v, ToVector(dims));
    result_.Want(view, {ir::kNoNode, plans_[id].grid, {from}, std::move(to)});
    return view;
  }

  bool Permute(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    if (form.expand != ir::kNoNode) return false;
    const Dims& from = DimsOf(node.operands[0]);
    const int rank = static_cast<int>(from.size());
    std::vector<int> place(rank);  // by dimension of the operand, that of the result
    std::vector<int> came;
    for (int64_t d : node.attributes.GetInts("dims")) {
      came.push_back(static_cast<int>(d < 0 ? d + rank : d));
      place[came.back()] = static_cast<int>(came.size()) - 1;
    }
    Lanes lanes;
    for (const Lane lane : form.lanes) lanes.push_back({place[lane.dim], place[lane.whole]});
    std::vector<int64_t> order;  // of the joined value's dimensions
    for (int d = 0; d < rank; ++d) {
      if (!IsLane(lanes, d)) order.push_back(NumberWithout(form.lanes, came[d]));
    }
    ir::ValueId joined = form.joined;
    if (!std::is_sorted(order.begin(), order.end())) {
      const std::optional<Sharding> operand =
          JoinedSharding(plans_[id].operands[0], from, form.lanes, GridOf(id));
      if (!operand) return false;
      joined = result_.Permuted(node, plans_[id].grid, joined, order, *operand);
    }
    return Remember(id, {joined, std::move(lanes)});
  }

  bool Expand(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const Dims& from = DimsOf(node.operands[0]);
    const Dims& to = DimsOf(node.first_result);
    const int added = static_cast<int>(to.size() - from.size());
    Form form{ir::kNoValue, {}, id};
    Lanes ones;  // dimensions of size 1 of the operand
    for (int d = 0; d < static_cast<int>(to.size()); ++d) {
      if (d >= added && from[d - added] == to[d]) continue;
      form.lanes.push_back({d, Lane::kEverywhere});
      if (d >= added) ones.push_back({d - added, Lane::kEverywhere});
    }
    const ir::ValueId r = node.first_result;
    if (form.lanes.empty() || leaves_[r] || IsConstraint(graph_, r)) return false;
    if (!JoinedSharding(plans_[id].results[0], to, form.lanes, GridOf(id))) return false;
    form.joined = Plain(node.operands[0]);
    if (!ones.empty()) {
      const Dims dims = JoinedDims(from, ones);
      form.joined = result_.BeforeReshape(form.joined, dims);
      if (form.joined == ir::kNoValue) {
        const Sharding& sharding = plans_[id].operands[0];
        form.joined =
            View(id, Plain(node.operands[0]), dims, sharding, WithoutDims(sharding, ones));
      }
    }
    return Remember(id, std::move(form));
  }

  // A product, sum or element-wise op.
  bool Call(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const rules::OpFactors& nf = *factors_[id];
    const rules::Rule& rule = *factors_[id].rule;
    const std::optional<LaneFactors> lanes = LanesOf(id);
    if (!lanes) return false;
    const ir::ValueId r = node.first_result;
    Lanes kept, summed;
    for (size_t whole = 0; whole < lanes->of.size(); ++whole) {
      for (const int f : lanes->of[whole]) {
        const int dim = DimOfFactor(nf.results[0], f);
        const int of = DimOfFactor(nf.results[0], static_cast<int>(whole));
        if (dim < 0 && of >= 0) return false;
        if (dim >= 0) (of < 0 ? summed : kept).push_back({dim, of});
      }
    }
    if (!summed.empty() && (rule.elementwise || !kept.empty() || !IsOnlySummed(id, summed))) {
      return false;
    }
    if (summed.empty() && !kept.empty() && (leaves_[r] || IsConstraint(graph_, r))) return false;
    const Lanes& gone = summed.empty() ? kept : summed;

    WantedPlan wanted{.grid = plan.grid};
    std::vector<ir::ValueId> operands;
    std::vector<Lanes> dropped(node.operands.size());  // dimensions of size 1 where lanes were
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v == ir::kNoValue) {
        wanted.operands.push_back(Sharding::Replicated(0));
        continue;
      }
      const Form* const form = FormOf(v);
      Sharding sharding = plan.operands[k];
      if (form != nullptr) {
        const auto joined = JoinedSharding(sharding, DimsOf(v), form->lanes, GridOf(id));
        if (!joined) return false;
        sharding = *joined;
      }
      const int behind = graph_.type(r).rank() - graph_.type(v).rank();
      for (const Lane lane : rule.elementwise ? kept : Lanes{}) {
        const int dim = lane.dim - behind;
        if (dim < 0 || (form != nullptr && IsLane(form->lanes, dim))) continue;
        if (form != nullptr || DimsOf(v)[dim] != 1) return false;
        dropped[k].push_back({dim, Lane::kEverywhere});
      }
      if (!dropped[k].empty()) sharding = WithoutDims(sharding, dropped[k]);
      wanted.operands.push_back(std::move(sharding));
    }
    if (summed.empty()) {
      wanted.result = JoinedSharding(plan.results[0], DimsOf(r), kept, GridOf(id));
      if (!wanted.result) return false;
    } else if (!JoinedSharding(plan.results[0], DimsOf(r), summed, GridOf(id))) {
      return false;
    }
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      const Form* const form = v == ir::kNoValue ? nullptr : FormOf(v);
      operands.push_back(v == ir::kNoValue ? ir::kNoValue
                         : form != nullptr ? form->joined
                                           : Plain(v));
      if (dropped[k].empty()) continue;
      operands[k] = View(id, operands[k], JoinedDims(DimsOf(v), dropped[k]), plan.operands[k],
                         wanted.operands[k]);
    }
    const TensorType& type = graph_.type(r);
    if (rule.elementwise) DropLeadingOnes(JoinedDims(type.dims, gone), operands, wanted);
    const ir::ValueId joined = EmitCall(id, *lanes, std::move(operands), std::move(wanted));
    if (joined == ir::kNoValue) return false;
    if (result_.type(joined).dtype != type.dtype ||
        result_.type(joined).dims != JoinedDims(type.dims, gone)) {
      return false;
    }
    if (!summed.empty()) {
      sums_[r] = joined;
      return true;
    }
    return kept.empty() ? BeSame(id, joined) : Remember(id, {joined, std::move(kept)});
  }

  // Nullopt if the node has no lanes, or if those of its operands do not fit each other.
  std::optional<LaneFactors> LanesOf(ir::NodeId id) const {
    const ir::Node& node = graph_.node(id);
    std::vector<const Lanes*> of_operands;
    for (const ir::ValueId v : node.operands) {
      const Form* const form = v == ir::kNoValue ? nullptr : FormOf(v);
      of_operands.push_back(form == nullptr ? nullptr : &form->lanes);
    }
    const rules::OpFactors& nf = *factors_[id];
    std::optional<LaneFactors> lanes = FindLaneFactors(nf, of_operands);
    for (size_t k = 0; lanes && k < node.operands.size(); ++k) {
      if (node.operands[k] == ir::kNoValue) continue;
      if (!HasLanesOfItsFactors(nf, static_cast<int>(k), of_operands[k], *lanes)) {
        return std::nullopt;
      }
    }
    return lanes;
  }

  // Operands that broadcast need no leading dimensions of size 1: what they were reshaped from is
  // read.
  void DropLeadingOnes(const Dims& result, std::vector<ir::ValueId>& operands,
                       WantedPlan& wanted) const {
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == ir::kNoValue) continue;
      const Dims& dims = result_.type(operands[k]).dims;
      if (dims == result) continue;
      size_t ones = 0;
      Lanes gone;
      while (ones < dims.size() && dims[ones] == 1) {
        gone.push_back({static_cast<int>(ones++), Lane::kEverywhere});
      }
      if (ones == 0) continue;
      const ir::ValueId before =
          result_.BeforeReshape(operands[k], Dims(dims.begin() + ones, dims.end()));
      if (before == ir::kNoValue) continue;
      wanted.operands[k] = WithoutDims(wanted.operands[k], gone);
      operands[k] = before;
    }
  }

  ir::ValueId EmitCall(ir::NodeId id, const LaneFactors& lanes, std::vector<ir::ValueId> operands,
                       WantedPlan wanted) {
    const ir::Node& node = graph_.node(id);
    const rules::OpFactors& nf = *factors_[id];
    const rules::OpFacts& facts = factors_[id].rule->facts;
    std::string op = node.op;
    Attributes attributes = node.attributes;
    if (facts.dims == rules::DimsUse::kBatches && nf.operands[0][0].size() == 1 &&
        lanes.is_lane[nf.operands[0][0][0]]) {
      op = std::string(facts.for_one);
    }
    if (facts.dims == rules::DimsUse::kSums) {
      const int rank = graph_.type(node.operands[0]).rank();
      const Form* const form = FormOf(node.operands[0]);
      std::vector<int64_t> dims;
      for (int64_t d : attributes.GetIntsOr("dim", {})) {
        const int dim = static_cast<int>(d < 0 ? d + rank : d);
        if (!IsLane(form->lanes, dim)) dims.push_back(NumberWithout(form->lanes, dim));
      }
      if (dims.empty() && !attributes.GetIntsOr("dim", {}).empty()) return ir::kNoValue;
      attributes.Set("dim", std::move(dims));
    }
    const std::optional<rules::MatrixProduct> form = rules::FactsOf(op).product;
    if (form.has_value() && result_.MultipliesMatrices(operands)) {
      const ir::ValueId v = result_.Product(node, *form, operands[0], operands[1], op, wanted);
      if (v != ir::kNoValue) return v;
    }
    return result_.Call(node, op, std::move(operands), std::move(attributes), node.updates,
                        std::move(wanted));
  }

  // Whether everything that uses the result of the node sums it over exactly these dimensions, and
  // reads it as it is made.
  bool IsOnlySummed(ir::NodeId id, const Lanes& dims) const {
    const ir::ValueId r = graph_.node(id).first_result;
    if (leaves_[r] || IsConstraint(graph_, r) || users_[r].empty()) return false;
    const int rank = graph_.type(r).rank();
    for (const ir::NodeId user : users_[r]) {
      const ir::Node& sum = graph_.node(user);
      if (rules::FactsOf(sum.op).dims != rules::DimsUse::kSums || sum.operands[0] != r ||
          sum.operands.size() != 1 || sum.attributes.GetBoolOr("keepdim", false) ||
          graph_.type(sum.first_result).dtype != graph_.type(r).dtype ||
          plans_[user].grid != plans_[id].grid ||
          !(plans_[user].operands[0] == plans_[id].results[0])) {
        return false;
      }
      std::vector<int64_t> over = sum.attributes.GetIntsOr("dim", {});
      for (int64_t& d : over) d = d < 0 ? d + rank : d;
      const bool same = over.size() == dims.size() &&
                        std::all_of(over.begin(), over.end(),
                                    [&](int64_t d) { return IsLane(dims, static_cast<int>(d)); });
      if (!same) return false;
    }
    return users_[r].size() == 1;
  }

  // The value as it is in the old graph.
  ir::ValueId Plain(ir::ValueId v) {
    if (plain_[v] != ir::kNoValue) return plain_[v];
    const Form form = *FormOf(v);
    const ir::NodeId id = graph_.value(v).producer;
    if (form.expand != ir::kNoNode) {
      const ir::ValueId operand = Plain(graph_.node(form.expand).operands[0]);
      return plain_[v] = result_.Copy(graph_, form.expand, {operand});
    }
    const Dims& dims = DimsOf(v);
    const Sharding& sharding = plans_[id].results[0];
    std::vector<int64_t> order, back(dims.size());
    Dims sizes;
    for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
      if (IsLane(form.lanes, d)) continue;
      for (const Lane lane : form.lanes) {
        if (lane.whole == d) order.push_back(lane.dim);
      }
      order.push_back(d);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      sizes.push_back(dims[order[i]]);
      back[order[i]] = static_cast<int64_t>(i);
    }
    const Sharding split = WithOrder(sharding, order);
    ir::ValueId made = View(id, form.joined, sizes,
                            *JoinedSharding(sharding, dims, form.lanes, GridOf(id)), split);
    if (!std::is_sorted(back.begin(), back.end())) {
      made = result_.BuilderFor(graph_.node(id)).Permute(made, std::move(back));
      result_.Want(made, {ir::kNoNode, plans_[id].grid, {split}, sharding});
    }
    result_.Annotate(made, *graph_.value(v).annotation);
    return plain_[v] = made;
  }

  void Copy(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    std::vector<ir::ValueId> operands;
    for (const ir::ValueId v : node.operands) operands.push_back(v == ir::kNoValue ? v : Plain(v));
    const ir::ValueId copy = result_.Copy(graph_, id, operands);
    for (int r = 0; r < node.num_results; ++r) plain_[node.first_result + r] = copy + r;
  }

  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  const std::vector<NodePlan>& plans_;
  const std::vector<std::vector<ir::NodeId>> users_;
  JoinedGraph result_;
  std::vector<bool> owned_;         // by value of the result: it stands for a value of the graph
  std::vector<ir::ValueId> plain_;  // by value of the graph; ir::kNoValue: only its form is there
  std::vector<bool> leaves_;        // by value of the graph: it is an output
  absl::flat_hash_map<ir::ValueId, Form> forms_;  // by value of the graph
  absl::flat_hash_map<ir::ValueId, ir::ValueId>
      sums_;  // by value of the graph: its sum over its lanes
};

}  // namespace

std::optional<Joined> JoinLanes(const ir::Graph& graph,
                                const std::vector<propagate::NodeFactors>& factors,
                                const std::vector<NodePlan>& plans) {
  return Joiner(graph, factors, plans).Run();
}

}  // namespace spmd::partition
