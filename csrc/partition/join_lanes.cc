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
      const Lanes lanes =
          SplitOff(DimsOf(node.operands[0]), DimsOf(r), plans_[id].results[0], GridOf(id));
      if (!lanes.empty() && JoinedSharding(plans_[id].results[0], DimsOf(r), lanes, GridOf(id))) {
        return true;
      }
    }
    return false;
  }

  // Writes the node without lanes, or remembers its results so. False if it has to be copied.
  bool Join(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const rules::Rule* const rule = factors_[id].rule;
    if (rule == nullptr || !node.groups.empty()) return false;
    if (node.operands.empty() || node.operands[0] == ir::kNoValue) return false;
    const Form* const form = FormOf(node.operands[0]);
    const bool single = node.num_results == 1;
    if (single && form != nullptr && rule->facts.dims == rules::DimsUse::kSums && Sum(id, *form)) {
      return true;
    }
    const bool reshapes = rule->facts.dims == rules::DimsUse::kReshapes;
    if (form == nullptr && reshapes && TakeBack(id)) return true;
    if (rule->random) return false;
    switch (rule->facts.dims) {
      case rules::DimsUse::kReshapes:
        return form == nullptr ? Split(id) : Reshape(id, *form);
      case rules::DimsUse::kPermutes:
        return form != nullptr && Permute(id, *form);
      case rules::DimsUse::kExpands:
        return Expand(id, form);
      case rules::DimsUse::kBatches:
        return Call(id) || ProductOfLanes(id);
      case rules::DimsUse::kSums:
      case rules::DimsUse::kAlong:
      case rules::DimsUse::kForEach:
      case rules::DimsUse::kClassOfRow:
        return Call(id);
      default:
        break;
    }
    if (!single) return false;
    if (rule->facts.is_operand) return form != nullptr && Remember(id, *form);
    const bool elementwise = rule->elementwise && rule->local == nullptr;
    return (elementwise || rule->facts.product.has_value()) && Call(id);
  }

  // Whether the result may be there without lanes only, and is sharded so that it can be.
  bool MayBeJoined(ir::NodeId id, int result, const Lanes& lanes) const {
    const ir::ValueId r = graph_.node(id).first_result + result;
    return !leaves_[r] && !IsConstraint(graph_, r) &&
           JoinedSharding(plans_[id].results[result], DimsOf(r), lanes, GridOf(id)).has_value();
  }

  // Remembers a result of a node in a form. False if it has to be there as it is, or if there is
  // none.
  bool Remember(ir::NodeId id, Form form, int result = 0) {
    if (form.joined == ir::kNoValue || !MayBeJoined(id, result, form.lanes)) return false;
    forms_[graph_.node(id).first_result + result] = std::move(form);
    return true;
  }

  // The value `r` is the value `v` of the new graph. False if `v` may not stand for it, or is none.
  bool BeSame(ir::ValueId r, ir::ValueId v) {
    if (v == ir::kNoValue) return false;
    if (owned_.size() <= static_cast<size_t>(v)) owned_.resize(v + 1, false);
    const bool is_new = result_.WantedSharding(v) != nullptr && !owned_[v];
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
    const Dims& from = DimsOf(node.operands[0]);
    const Dims& to = DimsOf(node.first_result);
    Lanes lanes = SplitOff(from, to, plans_[id].results[0], GridOf(id));
    if (lanes.empty() || !MayBeJoined(id, 0, lanes)) return false;
    ir::ValueId joined = Plain(node.operands[0]);
    const Dims dims = JoinedDims(to, lanes);
    if (dims != from) {  // it also adds or removes dimensions of size 1
      joined = result_.View(node, plans_[id].grid, joined, dims, plans_[id].operands[0],
                            *JoinedSharding(plans_[id].results[0], to, lanes, GridOf(id)));
    }
    return Remember(id, {joined, std::move(lanes)});
  }

  // A reshape of what was reshaped in the new graph, to what it was before.
  bool TakeBack(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const ir::ValueId v = plain_[node.operands[0]];
    const Dims& to = DimsOf(node.first_result);
    if (v == ir::kNoValue || result_.WantedSharding(v) == nullptr || result_.type(v).dims == to) {
      return false;
    }
    const ir::ValueId before = result_.BeforeReshape(v, to);
    const Sharding* const known = before == ir::kNoValue ? nullptr : result_.WantedSharding(before);
    return known != nullptr && *known == plans_[id].results[0] && BeSame(node.first_result, before);
  }

  bool Reshape(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const ir::ValueId r = node.first_result;
    const Dims& from = DimsOf(node.operands[0]);
    const Dims& to = DimsOf(r);
    const std::optional<Sharding> operand =
        JoinedSharding(plan.operands[0], from, form.lanes, GridOf(id));
    if (!operand) return false;
    const std::optional<Lanes> lanes = AfterReshape(from, form.lanes, to);
    if (lanes && !lanes->empty() && MayBeJoined(id, 0, *lanes)) {
      const ir::ValueId joined =
          result_.View(node, plan.grid, form.joined, JoinedDims(to, *lanes), *operand,
                       *JoinedSharding(plan.results[0], to, *lanes, GridOf(id)));
      if (Remember(id, {joined, *lanes})) return true;
    }
    const bool in_place = AreInPlace(from, form.lanes);
    if (in_place && JoinedDims(from, form.lanes) == to) return BeSame(r, form.joined);
    if (!in_place && !(lanes && lanes->empty())) return false;
    return BeSame(r, result_.View(node, plan.grid, form.joined, to, *operand, plan.results[0]));
  }

  bool Permute(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const Dims& from = DimsOf(node.operands[0]);
    const int rank = static_cast<int>(from.size());
    std::vector<int> place(rank);  // by dimension of the operand, that of the result
    std::vector<int> came;
    for (int64_t d : node.attributes.GetInts("dims")) {
      came.push_back(static_cast<int>(d < 0 ? d + rank : d));
      place[came.back()] = static_cast<int>(came.size()) - 1;
    }
    Lanes lanes;
    for (const Lane lane : form.lanes) {
      lanes.push_back(
          {place[lane.dim], lane.whole < 0 ? lane.whole : place[lane.whole], lane.size});
    }
    if (!MayBeJoined(id, 0, lanes)) return false;
    std::vector<int64_t> order;  // of the joined value's dimensions
    for (int d = 0; d < rank; ++d) {
      if (!IsLane(lanes, d)) order.push_back(NumberWithout(form.lanes, came[d]));
    }
    ir::ValueId joined = form.joined;
    if (!std::is_sorted(order.begin(), order.end())) {
      const std::optional<Sharding> operand =
          JoinedSharding(plans_[id].operands[0], from, form.lanes, GridOf(id));
      if (!operand) return false;
      joined = Permuted(node, plans_[id].grid, joined, order, *operand);
    }
    return Remember(id, {joined, std::move(lanes)});
  }

  // `v`, sharded as `sharding`, with its dimensions in the order `order`. Dimensions of size 1 are
  // moved by views, so that products see the matrices behind them.
  ir::ValueId Permuted(const ir::Node& like, int grid, ir::ValueId v,
                       const std::vector<int64_t>& order, const Sharding& sharding) {
    const Dims dims = result_.type(v).dims;
    Dims sizes;
    Lanes gone;
    std::vector<int64_t> rest;  // dimensions that are not of size 1
    for (const int64_t d : order) {
      sizes.push_back(dims[d]);
      if (dims[d] != 1) rest.push_back(d);
    }
    for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
      if (dims[d] == 1) gone.push_back({d, Lane::kEverywhere});
    }
    const Sharding ordered = WithOrder(sharding, order);
    if (std::is_sorted(rest.begin(), rest.end())) {
      return result_.View(like, grid, v, sizes, sharding, ordered);
    }
    if (gone.empty()) return result_.Permuted(like, grid, v, order, sharding);
    for (int64_t& d : rest) d = NumberWithout(gone, static_cast<int>(d));
    const Sharding without = WithoutDims(sharding, gone);
    ir::ValueId permuted = result_.View(like, grid, v, WithoutOnes(dims), sharding, without);
    if (permuted != ir::kNoValue) {
      permuted = result_.Permuted(like, grid, permuted, rest, without);
    }
    if (permuted == ir::kNoValue) return permuted;
    return result_.View(like, grid, permuted, sizes, WithOrder(without, rest), ordered);
  }

  // Dimensions of which each device has one index are lanes that hold the same.
  bool Expand(ir::NodeId id, const Form* form) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const Lanes none;
    const Lanes& own = form == nullptr ? none : form->lanes;
    const Dims& from = DimsOf(node.operands[0]);
    const Dims& to = DimsOf(node.first_result);
    const int added = static_cast<int>(to.size() - from.size());
    Lanes lanes;
    Lanes ones;  // dimensions of size 1 of the operand without lanes
    bool others = false;
    for (int d = 0; d < static_cast<int>(to.size()); ++d) {
      if (d >= added && from[d - added] == to[d]) continue;
      const AxisList& axes = plan.results[0].dims[d].axes;
      if (axes.empty() || GridOf(id).size(axes) != to[d]) {
        others = true;
        continue;
      }
      lanes.push_back({d, Lane::kEverywhere});
      if (d >= added) ones.push_back({NumberWithout(own, d - added), Lane::kEverywhere});
    }
    const bool any = !lanes.empty();
    for (const Lane lane : own) {
      lanes.push_back(
          {lane.dim + added, lane.whole < 0 ? lane.whole : lane.whole + added, lane.size});
    }
    if (lanes.empty() || any == others || !MayBeJoined(id, 0, lanes)) return false;
    const std::optional<Sharding> operand = JoinedSharding(plan.operands[0], from, own, GridOf(id));
    if (!operand) return false;
    ir::ValueId joined = form == nullptr ? Plain(node.operands[0]) : form->joined;
    if (others) {  // no lanes are added: the same op without those that are there
      const TensorType type{graph_.type(node.first_result).dtype, JoinedDims(to, lanes)};
      Attributes attributes = node.attributes;
      attributes.Set("size", ToVector(type.dims));
      WantedPlan wanted{.grid = plan.grid, .operands = {*operand}, .through = plan.choice};
      wanted.results = {*JoinedSharding(plan.results[0], to, lanes, GridOf(id))};
      joined = result_.Call(node, node.op, {joined}, std::move(attributes), node.updates,
                            std::move(wanted), {&type, 1});
    }
    if (!ones.empty()) {
      const Dims dims = JoinedDims(JoinedDims(from, own), ones);
      const ir::ValueId before = result_.BeforeReshape(joined, dims);
      joined = before != ir::kNoValue ? before
                                      : result_.View(node, plan.grid, joined, dims, *operand,
                                                     WithoutDims(*operand, ones));
    }
    return Remember(id, {joined, std::move(lanes)});
  }

  // A sum over the lanes of a value of which the sum is known already.
  bool Sum(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const ir::ValueId r = node.first_result;
    const Dims& from = DimsOf(node.operands[0]);
    const int rank = static_cast<int>(from.size());
    std::vector<bool> over(rank, false);
    for (const int64_t d : node.attributes.GetIntsOr("dim", {})) over[d < 0 ? d + rank : d] = true;
    for (int d = 0; d < rank; ++d) {
      const bool summed = std::any_of(form.lanes.begin(), form.lanes.end(), [d](Lane lane) {
        return lane.dim == d && lane.whole == Lane::kSummed && lane.size == 0;
      });
      if (over[d] != summed) return false;
    }
    if (std::find(over.begin(), over.end(), true) == over.end()) return false;
    const Sharding* const made = result_.WantedSharding(form.joined);
    const std::optional<Sharding> operand =
        JoinedSharding(plan.operands[0], from, form.lanes, GridOf(id));
    if (made == nullptr || !operand || !(*made == *operand)) return false;
    if (graph_.type(r).dtype != result_.type(form.joined).dtype) return false;
    const bool keeps = node.attributes.GetBoolOr("keepdim", false);
    std::vector<int> place(rank);  // by dimension of the operand, that of the result
    int next = 0;
    for (int d = 0; d < rank; ++d) {
      place[d] = next;
      next += over[d] && !keeps ? 0 : 1;
    }
    Lanes lanes;
    for (const Lane lane : form.lanes) {
      if (lane.whole == Lane::kSummed) continue;
      if (lane.whole < 0) return false;
      lanes.push_back({place[lane.dim], place[lane.whole], lane.size});
    }
    const std::optional<Sharding> result =
        JoinedSharding(plan.results[0], DimsOf(r), lanes, GridOf(id));
    if (!result || (!lanes.empty() && !MayBeJoined(id, 0, lanes))) return false;
    const ir::ValueId joined =
        result_.View(node, plan.grid, form.joined, JoinedDims(DimsOf(r), lanes), *operand, *result);
    return lanes.empty() ? BeSame(r, joined) : Remember(id, {joined, std::move(lanes)});
  }

  // A call of the same op, or of one that does the same for one index, on operands without lanes.
  bool Call(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const rules::OpFactors& nf = *factors_[id];
    const rules::Rule& rule = *factors_[id].rule;
    if (!nf.windows.empty()) return false;
    std::vector<const Lanes*> of_operands;
    for (const ir::ValueId v : node.operands) {
      const Form* const form = v == ir::kNoValue ? nullptr : FormOf(v);
      of_operands.push_back(form == nullptr ? nullptr : &form->lanes);
    }
    const std::optional<LaneFactors> lanes = FindLaneFactors(nf, of_operands);
    if (!lanes) return false;

    WantedPlan wanted{.grid = plan.grid, .through = plan.choice};
    std::vector<Lanes> of_results;
    std::vector<TensorType> types;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      const std::optional<Lanes> mine = LanesOfResult(nf, r, *lanes);
      if (!mine || (!mine->empty() && !MayBeJoined(id, r, *mine))) return false;
      const bool sums = !AreSplit(*mine);
      if (sums && !plan.choice.through.empty()) return false;
      if (sums && (rule.elementwise || node.num_results > 1 || users_[v].size() != 1)) return false;
      wanted.results.push_back(*JoinedSharding(plan.results[r], DimsOf(v), *mine, GridOf(id)));
      types.push_back({graph_.type(v).dtype, JoinedDims(DimsOf(v), *mine)});
      of_results.push_back(*mine);
    }
    std::vector<ir::ValueId> operands;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v == ir::kNoValue) {
        wanted.operands.push_back(Sharding::Replicated(0));
        operands.push_back(v);
        continue;
      }
      const Lanes none;
      const std::optional<Sharding> sharding =
          JoinedSharding(plan.operands[k], DimsOf(v),
                         of_operands[k] == nullptr ? none : *of_operands[k], GridOf(id));
      if (!sharding) return false;
      wanted.operands.push_back(*sharding);
      operands.push_back(of_operands[k] == nullptr ? Plain(v) : FormOf(v)->joined);
      if (rule.elementwise && !DropOnes(id, static_cast<int>(k), of_results[0], operands, wanted)) {
        return false;
      }
    }
    if (rule.elementwise) DropLeadingOnes(types[0].dims, operands, wanted);
    const ir::ValueId joined =
        EmitCall(id, of_operands, of_results, std::move(operands), std::move(wanted), types);
    if (joined == ir::kNoValue) return false;
    bool all = true;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = joined + r;
      all = (of_results[r].empty() ? BeSame(node.first_result + r, v)
                                   : Remember(id, {v, of_results[r]}, r)) &&
            all;
    }
    return all;
  }

  // A product for each index of dimension 0, which is several lanes merged: f32[d · x,m,k], of
  // which the lanes along d were split from the rows, say, and those along x from the columns of
  // the other operand.
  bool ProductOfLanes(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const ir::ValueId r = node.first_result;
    const Form* const forms[] = {FormOf(node.operands[0]), FormOf(node.operands[1])};
    if (forms[0] == nullptr || forms[1] == nullptr) return false;
    const Lanes &left = forms[0]->lanes, &right = forms[1]->lanes;
    Lanes lanes;
    int64_t size = 1;
    for (size_t i = 0; i < left.size() && left.size() == right.size(); ++i) {
      if (left[i].dim != 0 || right[i].dim != 0 || left[i].size != right[i].size) return false;
      const std::pair<int, int> wholes{left[i].whole, right[i].whole};
      int whole;
      if (wholes == std::pair{1, Lane::kEverywhere}) {
        whole = 1;
      } else if (wholes == std::pair{Lane::kEverywhere, 2}) {
        whole = 2;
      } else if (wholes == std::pair{2, 1}) {
        whole = Lane::kSummed;
      } else {
        return false;
      }
      lanes.push_back({0, whole, left[i].size});
      size *= left[i].size;
    }
    if (lanes.size() < 2 || size != DimsOf(r)[0] || !MayBeJoined(id, 0, lanes)) return false;
    if (!plan.choice.through.empty()) return false;
    if (!AreSplit(lanes) && users_[r].size() != 1) return false;
    // Without lanes, dimension 0 is left with size 1.
    const Lanes first{{0, Lane::kEverywhere}};
    const auto matrix = [](const Dims& dims) { return Dims(dims.begin() + 1, dims.end()); };
    WantedPlan wanted{.grid = plan.grid};
    ir::ValueId operands[2];
    for (int k = 0; k < 2; ++k) {
      const Dims& dims = DimsOf(node.operands[k]);
      const auto sharding = JoinedSharding(plan.operands[k], dims, forms[k]->lanes, GridOf(id));
      if (!sharding) return false;
      wanted.operands.push_back(WithoutDims(*sharding, first));
      operands[k] =
          result_.View(node, plan.grid, forms[k]->joined, matrix(JoinedDims(dims, forms[k]->lanes)),
                       *sharding, wanted.operands[k]);
      if (operands[k] == ir::kNoValue) return false;
    }
    const Sharding result = *JoinedSharding(plan.results[0], DimsOf(r), lanes, GridOf(id));
    wanted.results.push_back(WithoutDims(result, first));
    const absl::string_view op = factors_[id].rule->facts.for_one;
    const std::optional<rules::MatrixProduct> form = rules::FactsOf(op).product;
    if (!form) return false;
    ir::ValueId product = result_.Product(node, *form, operands[0], operands[1], op, wanted);
    if (product == ir::kNoValue) {
      product = result_.Call(node, std::string(op), {operands[0], operands[1]}, {}, -1, wanted);
    }
    const Dims dims = JoinedDims(DimsOf(r), lanes);
    if (product == ir::kNoValue || result_.type(product).dims != matrix(dims)) return false;
    return Remember(id, {result_.View(node, plan.grid, product, dims, wanted.results[0], result),
                         std::move(lanes)});
  }

  // Drops the dimensions of size 1 that an operand of an element-wise op has in the place of lanes
  // of the result. False if it has others than those.
  bool DropOnes(ir::NodeId id, int k, const Lanes& of_result, std::vector<ir::ValueId>& operands,
                WantedPlan& wanted) {
    const ir::Node& node = graph_.node(id);
    const ir::ValueId v = node.operands[k];
    const Form* const form = FormOf(v);
    const int behind = graph_.type(node.first_result).rank() - graph_.type(v).rank();
    Lanes ones;
    for (const Lane lane : of_result) {
      const int dim = lane.dim - behind;
      if (lane.size > 0 || dim < 0 || (form != nullptr && IsLane(form->lanes, dim))) continue;
      if (form != nullptr || DimsOf(v)[dim] != 1) return false;
      ones.push_back({dim, Lane::kEverywhere});
    }
    if (ones.empty()) return true;
    Sharding without = WithoutDims(wanted.operands[k], ones);
    operands[k] = result_.View(node, plans_[id].grid, operands[k], JoinedDims(DimsOf(v), ones),
                               wanted.operands[k], without);
    wanted.operands[k] = std::move(without);
    return operands[k] != ir::kNoValue;
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

  ir::ValueId EmitCall(ir::NodeId id, absl::Span<const Lanes* const> of_operands,
                       absl::Span<const Lanes> of_results, std::vector<ir::ValueId> operands,
                       WantedPlan wanted, absl::Span<const TensorType> types) {
    const ir::Node& node = graph_.node(id);
    const rules::OpFacts& facts = factors_[id].rule->facts;
    const Lanes none;
    const Lanes& first = of_operands[0] == nullptr ? none : *of_operands[0];
    const int rank = graph_.type(node.operands[0]).rank();
    const auto is_matrix = [&](int k) { return result_.type(operands[k]).rank() == 2; };
    Attributes attributes = node.attributes;
    std::string op = node.op;
    if (!facts.for_one.empty() && is_matrix(0) && is_matrix(1)) op = std::string(facts.for_one);
    if (facts.dims == rules::DimsUse::kSums) {
      const std::vector<int64_t> given = attributes.GetIntsOr("dim", {});
      std::vector<int64_t> dims;
      for (int64_t d : given) {
        const int dim = static_cast<int>(d < 0 ? d + rank : d);
        if (!IsLane(first, dim)) dims.push_back(NumberWithout(first, dim));
      }
      if (dims.empty() && !given.empty()) return ir::kNoValue;
      attributes.Set("dim", std::move(dims));
    }
    if (facts.dims == rules::DimsUse::kAlong) {
      const int64_t d = attributes.GetInt("dim");
      const int dim = static_cast<int>(d < 0 ? d + rank : d);
      if (IsLane(first, dim)) return ir::kNoValue;
      attributes.Set("dim", NumberWithout(first, dim));
    }
    const std::optional<rules::MatrixProduct> form = rules::FactsOf(op).product;
    if (form.has_value() && wanted.through.through.empty() &&
        result_.MultipliesMatrices(operands)) {
      const ir::ValueId v = result_.Product(node, *form, operands[0], operands[1], op, wanted);
      if (v != ir::kNoValue && result_.type(v) == types[0]) return v;
    }
    const ir::ValueId v = result_.Call(node, op, std::move(operands), std::move(attributes),
                                       node.updates, std::move(wanted), types);
    if (v == ir::kNoValue || op != node.op || factors_[id].rule->elementwise) return v;
    return result_.Relates(v, *factors_[id], of_operands, of_results) ? v : ir::kNoValue;
  }

  // The value as it is in the old graph.
  ir::ValueId Plain(ir::ValueId v) {
    if (plain_[v] != ir::kNoValue) return plain_[v];
    const Form form = *FormOf(v);
    const ir::NodeId id = graph_.value(v).producer;
    const ir::ValueId made = AreSplit(form.lanes) ? SplitAgain(id, v, form) : ir::kNoValue;
    if (made == ir::kNoValue) {
      Copy(id);
      return plain_[v];
    }
    result_.Annotate(made, *graph_.value(v).annotation);
    return plain_[v] = made;
  }

  // The result `v` of a node with its lanes. ir::kNoValue if it cannot be made of what is joined.
  ir::ValueId SplitAgain(ir::NodeId id, ir::ValueId v, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const int grid = plans_[id].grid;
    const Dims& dims = DimsOf(v);
    const Sharding& sharding = plans_[id].results[v - node.first_result];
    const Apart apart = TakeApart(sharding, dims, form.lanes, GridOf(id));
    ir::ValueId made =
        result_.View(node, grid, form.joined, apart.sizes,
                     *JoinedSharding(sharding, dims, form.lanes, GridOf(id)), apart.before);
    if (made != ir::kNoValue && !std::is_sorted(apart.order.begin(), apart.order.end())) {
      made = result_.Permuted(node, grid, made, apart.order, apart.before);
    }
    if (made == ir::kNoValue) return made;
    return result_.View(node, grid, made, dims, apart.after, sharding);
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
};

}  // namespace

std::optional<Joined> JoinLanes(const ir::Graph& graph,
                                const std::vector<propagate::NodeFactors>& factors,
                                const std::vector<NodePlan>& plans) {
  return Joiner(graph, factors, plans).Run();
}

}  // namespace spmd::partition
