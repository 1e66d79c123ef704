// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/lane_views.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "csrc/rules/registry.h"

namespace spmd::partition {

bool LaneViews::Split(ir::NodeId id) {
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

bool LaneViews::TakeBack(ir::NodeId id) {
  const ir::Node& node = graph_.node(id);
  const ir::ValueId v = plain_[node.operands[0]];
  const Dims& to = DimsOf(node.first_result);
  if (v == ir::kNoValue || result_.WantedSharding(v) == nullptr || result_.type(v).dims == to) {
    return false;
  }
  const ir::ValueId before = result_.BeforeReshape(v, to);
  const Sharding* const known = before == ir::kNoValue ? nullptr : result_.WantedSharding(before);
  if (known != nullptr && *known == plans_[id].results[0] && BeSame(node.first_result, before)) {
    return true;
  }
  if (*result_.WantedSharding(v) == plans_[id].operands[0] && result_.IsReshaped(v)) {
    return BeSame(node.first_result, result_.View(node, plans_[id].grid, v, to,
                                                  plans_[id].operands[0], plans_[id].results[0]));
  }
  // A value that is sent in between, to this reader only, may lack dimensions of size 1.
  if (users_[node.operands[0]].size() != 1) return false;
  const ir::ValueId source = result_.BeforeOnes(v);
  if (source == v || WithoutOnes(DimsOf(node.operands[0])) != WithoutOnes(to)) return false;
  const Sharding sent =
      WithOnesOf(plans_[id].operands[0], DimsOf(node.operands[0]), result_.type(source).dims);
  return BeSame(node.first_result,
                result_.View(node, plans_[id].grid, source, to, sent, plans_[id].results[0]));
}

bool LaneViews::Reshape(ir::NodeId id, const Form& form) {
  const ir::ValueId v = graph_.node(id).operands[0];
  const Dims &from = DimsOf(v), &to = DimsOf(graph_.node(id).first_result);
  const std::optional<Lanes> after = AfterReshape(from, form.lanes, to);
  const auto is_rest = [](const Dims& dims, Lane lane) {
    return lane.whole >= 0 && dims[lane.whole] == 1;
  };
  const auto rests = [&](const Dims& dims, const Lanes& lanes) {
    return std::count_if(lanes.begin(), lanes.end(),
                         [&](Lane lane) { return is_rest(dims, lane); });
  };
  const auto before = rests(from, form.lanes);
  if (after && (before == 0 || rests(to, *after) == before) && ReshapeIn(id, form)) return true;
  // What was split from a dimension of which a device has nothing else may be a part of another.
  for (size_t i = 0; i < form.lanes.size(); ++i) {
    const Lane lane = form.lanes[i];
    if (lane.whole < 0 || (!is_rest(from, lane) && !form.moved)) continue;
    for (int d = static_cast<int>(from.size()) - 1; d >= 0; --d) {
      if (d == lane.whole || d == lane.dim || from[d] == 1 || IsLane(form.lanes, d)) continue;
      Lanes lanes = form.lanes;
      lanes[i].whole = d;
      if (!AfterReshape(from, lanes, to)) continue;
      const ir::ValueId joined = Without(v, lanes);
      if (joined != ir::kNoValue && ReshapeIn(id, {joined, lanes, /*moved=*/true})) return true;
    }
  }
  return ReshapeIn(id, form);
}

bool LaneViews::ReshapeIn(ir::NodeId id, const Form& form) {
  Lanes none;
  const ir::Node& node = graph_.node(id);
  const NodePlan& plan = plans_[id];
  const ir::ValueId r = node.first_result;
  const Dims& from = DimsOf(node.operands[0]);
  const Dims& to = DimsOf(r);
  const std::optional<Sharding> operand =
      JoinedSharding(plan.operands[0], from, form.lanes, GridOf(id));
  if (!operand) return false;
  std::optional<Lanes> lanes = AfterReshape(from, form.lanes, to);
  for (Lane& lane : form.moved&& lanes ? *lanes : none) {
    if (lane.whole > 0 && to[lane.whole - 1] == 1) --lane.whole;
  }
  if (lanes && !lanes->empty() && MayBeJoined(id, 0, *lanes)) {
    const ir::ValueId joined =
        result_.View(node, plan.grid, form.joined, JoinedDims(to, *lanes), *operand,
                     *JoinedSharding(plan.results[0], to, *lanes, GridOf(id)));
    const bool moved =
        form.moved || std::any_of(form.lanes.begin(), form.lanes.end(), [&](Lane lane) {
          return lane.whole >= 0 && from[lane.whole] == 1;
        });
    if (Remember(id, {joined, *lanes, moved})) return true;
  }
  const bool in_place = AreInPlace(from, form.lanes);
  if (in_place && JoinedDims(from, form.lanes) == to) return BeSame(r, form.joined);
  if (!in_place && !(lanes && lanes->empty())) return false;
  return BeSame(r, result_.View(node, plan.grid, form.joined, to, *operand, plan.results[0]));
}

bool LaneViews::Permute(ir::NodeId id, const Form& form) {
  const std::vector<int> came = Sources(id);
  std::vector<int> place(came.size());  // by dimension of the operand, that of the result
  for (size_t d = 0; d < came.size(); ++d) place[came[d]] = static_cast<int>(d);
  Lanes lanes;
  for (Lane lane : form.lanes) {
    lane.dim = place[lane.dim];
    if (lane.whole >= 0) lane.whole = place[lane.whole];
    lanes.push_back(lane);
  }
  if (!MayBeJoined(id, 0, lanes)) return false;
  return Remember(id, {PermutedDims(id, form.joined, form.lanes), std::move(lanes), form.moved});
}

bool LaneViews::Expand(ir::NodeId id, const Form* form) {
  const ir::Node& node = graph_.node(id);
  const NodePlan& plan = plans_[id];
  const Dims& from = DimsOf(node.operands[0]);
  const Dims& to = DimsOf(node.first_result);
  const int added = static_cast<int>(to.size() - from.size());
  Lanes lanes;
  for (int d = 0; d < static_cast<int>(to.size()); ++d) {
    const AxisList& axes = plan.results[0].dims[d].axes;
    if (d >= added && from[d - added] == to[d]) continue;
    if (!axes.empty() && GridOf(id).size(axes) == to[d]) lanes.push_back({d, Lane::kEverywhere});
  }
  for (Lane lane : form == nullptr ? Lanes() : form->lanes) {
    lane.dim += added;
    if (lane.whole >= 0) lane.whole += added;
    lanes.push_back(lane);
  }
  if (lanes.empty() || !MayBeJoined(id, 0, lanes)) return false;
  return Remember(id, {Without(node.first_result, lanes), std::move(lanes)});
}

bool LaneViews::Sum(ir::NodeId id, const Form& form) {
  const ir::Node& node = graph_.node(id);
  const NodePlan& plan = plans_[id];
  const ir::ValueId r = node.first_result;
  const Dims& from = DimsOf(node.operands[0]);
  const int rank = static_cast<int>(from.size());
  std::vector<bool> over(rank, false);
  for (const int64_t d : node.attributes.GetIntsOr("dim", {})) over[d < 0 ? d + rank : d] = true;
  const auto reduces_as = [&](Lane lane) {
    const rules::DimFactors& dim = factors_[id]->operands[0][lane.dim];
    return dim.size() == 1 && factors_[id]->factors[dim[0]].reduce == lane.reduce;
  };
  // It adds up lanes that are terms of the sum, and nothing else.
  std::vector<bool> summed(rank, false);
  for (const Lane lane : form.lanes) {
    if (lane.whole != Lane::kSummed || !over[lane.dim]) continue;
    if (lane.size > 0 || !reduces_as(lane)) return false;
    summed[lane.dim] = true;
  }
  if (over != summed || std::find(over.begin(), over.end(), true) == over.end()) return false;
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
    if (over[lane.dim]) continue;
    if (lane.whole == Lane::kEverywhere) return false;
    const int whole = lane.whole < 0 ? lane.whole : place[lane.whole];
    lanes.push_back({place[lane.dim], whole, lane.size, lane.reduce});
  }
  const std::optional<Sharding> result =
      JoinedSharding(plan.results[0], DimsOf(r), lanes, GridOf(id));
  if (!result || (!lanes.empty() && !MayBeJoined(id, 0, lanes))) return false;
  // Lanes that are left are terms of the same sum.
  if (HasSums(lanes) && result->unreduced != operand->unreduced) return false;
  const ir::ValueId joined =
      result_.View(node, plan.grid, form.joined, JoinedDims(DimsOf(r), lanes), *operand, *result);
  return lanes.empty() ? BeSame(r, joined) : Remember(id, {joined, std::move(lanes)});
}

bool LaneViews::IsLinear(ir::NodeId id, ReduceKind kind) const {
  const ir::Node& node = graph_.node(id);
  const rules::Rule& rule = *factors_[id].rule;
  if (!rule.elementwise || rule.local != nullptr || node.operands.size() != 1) return false;
  const rules::Linearity linear = rules::LinearityOf(rule, rules::OpCall::Of(graph_, node), kind);
  return !linear.each.empty() || !linear.jointly.empty();
}

bool LaneViews::Linear(ir::NodeId id, const Form& form) {
  const ir::Node& node = graph_.node(id);
  const NodePlan& plan = plans_[id];
  for (const Lane lane : form.lanes) {
    if (lane.whole == Lane::kSummed && !IsLinear(id, lane.reduce)) return false;
  }
  if (!MayBeJoined(id, 0, form.lanes)) return false;
  const Dims& dims = DimsOf(node.first_result);
  const std::optional<Sharding> operand =
      JoinedSharding(plan.operands[0], dims, form.lanes, GridOf(id));
  if (!operand) return false;
  const TensorType type{graph_.type(node.first_result).dtype, JoinedDims(dims, form.lanes)};
  WantedPlan wanted{.grid = plan.grid, .operands = {*operand}};
  wanted.results = {*JoinedSharding(plan.results[0], dims, form.lanes, GridOf(id))};
  const ir::ValueId joined = result_.Call(node, node.op, {form.joined}, node.attributes,
                                          node.updates, std::move(wanted), {&type, 1});
  return Remember(id, {joined, form.lanes});
}

}  // namespace spmd::partition
