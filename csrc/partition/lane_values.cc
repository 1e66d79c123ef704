// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/lane_values.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "csrc/partition/at_borders.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {
namespace {

constexpr absl::string_view kExpandedSizes = "size";  // of an op that expands

bool Holds(const Lanes& lanes, Lane lane) {
  return std::find(lanes.begin(), lanes.end(), lane) != lanes.end();
}

bool AreEqual(const std::optional<Lanes>& a, const std::optional<Lanes>& b) {
  return a.has_value() && b.has_value() && AreSame(*a, *b);
}

}  // namespace

LaneValues::LaneValues(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
                       const std::vector<NodePlan>& plans)
    : graph_(graph),
      factors_(factors),
      plans_(plans),
      result_(graph, plans),
      plain_(graph.num_values(), ir::kNoValue),
      leaves_(graph.num_values(), false) {
  for (const ir::Output& output : graph.outputs()) leaves_[output.value] = true;
}

bool LaneValues::MayBeJoined(ir::NodeId id, int result, const Lanes& lanes) const {
  const ir::ValueId r = graph_.node(id).first_result + result;
  return !leaves_[r] && !IsConstraint(graph_, r) &&
         JoinedSharding(plans_[id].results[result], DimsOf(r), lanes, GridOf(id)).has_value();
}

bool LaneValues::Remember(ir::NodeId id, Form form, int result) {
  if (form.joined == ir::kNoValue || !MayBeJoined(id, result, form.lanes)) return false;
  forms_[graph_.node(id).first_result + result] = std::move(form);
  return true;
}

bool LaneValues::BeSame(ir::ValueId r, ir::ValueId v) {
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

void LaneValues::Copy(ir::NodeId id) {
  const ir::Node& node = graph_.node(id);
  std::vector<ir::ValueId> operands;
  for (const ir::ValueId v : node.operands) operands.push_back(v == ir::kNoValue ? v : Plain(v));
  const ir::ValueId copy = result_.Copy(graph_, id, operands);
  for (int r = 0; r < node.num_results; ++r) plain_[node.first_result + r] = copy + r;
}

ir::ValueId LaneValues::Plain(ir::ValueId v) {
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
ir::ValueId LaneValues::SplitAgain(ir::NodeId id, ir::ValueId v, const Form& form) {
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

ir::ValueId LaneValues::Permuted(const ir::Node& like, int grid, ir::ValueId v,
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

std::vector<int> LaneValues::Sources(ir::NodeId id) const {
  const ir::Node& node = graph_.node(id);
  const int rank = graph_.type(node.operands[0]).rank();
  std::vector<int> came;
  for (int64_t d : node.attributes.GetInts("dims")) {
    came.push_back(static_cast<int>(d < 0 ? d + rank : d));
  }
  return came;
}

ir::ValueId LaneValues::PermutedDims(ir::NodeId id, ir::ValueId joined, const Lanes& lanes) {
  const ir::Node& node = graph_.node(id);
  const Dims& from = DimsOf(node.operands[0]);
  std::vector<int64_t> order;  // of the joined value's dimensions
  for (const int d : Sources(id)) {
    if (!IsLane(lanes, d)) order.push_back(NumberWithout(lanes, d));
  }
  if (std::is_sorted(order.begin(), order.end())) return joined;
  const std::optional<Sharding> operand =
      JoinedSharding(plans_[id].operands[0], from, lanes, GridOf(id));
  if (!operand) return ir::kNoValue;
  return Permuted(node, plans_[id].grid, joined, order, *operand);
}

ir::ValueId LaneValues::WithoutOnesOf(const ir::Node& like, int grid, ir::ValueId v,
                                      const Lanes& ones, Sharding& sharding) {
  if (ones.empty()) return v;
  Sharding without = WithoutDims(sharding, ones);
  const Dims dims = JoinedDims(result_.type(v).dims, ones);
  const bool sent = !(result_.MadeSharding(v) == sharding);
  const ir::ValueId before = sent ? ir::kNoValue : result_.BeforeReshape(v, dims);
  const ir::ValueId made =
      before != ir::kNoValue ? before : result_.View(like, grid, v, dims, sharding, without);
  sharding = std::move(without);
  return made;
}

ir::ValueId LaneValues::Without(ir::ValueId v, const Lanes& lanes) {
  if (lanes.empty()) return Plain(v);
  const Form* const form = FormOf(v);
  if (form != nullptr && AreSame(form->lanes, lanes)) return form->joined;
  const bool plain = form == nullptr;
  const bool together = std::exchange(put_together_, false);  // this value, and no operand of it
  ir::ValueId made = ir::kNoValue;
  bool known = false;
  for (const Form& other : asked_[v]) {
    if (!AreSame(other.lanes, lanes)) continue;
    if (made == ir::kNoValue) made = other.joined;
    known = true;
  }
  if (made == ir::kNoValue && (!known || in_place_)) made = Compute(v, lanes);
  if (made == ir::kNoValue && together && plain) made = Together(v, lanes);
  if (!known || made != ir::kNoValue) asked_[v].push_back({made, lanes});
  put_together_ = together;
  return made;
}

ir::ValueId LaneValues::WithoutAs(ir::ValueId v, const Lanes& lanes, const Sharding& sharding) {
  const ir::ValueId made = Without(v, lanes);
  const Form* const form = FormOf(v);
  const bool as_known = lanes.empty() || (form != nullptr && AreSame(form->lanes, lanes));
  if (made == ir::kNoValue || as_known || result_.MadeSharding(made) == sharding) return made;
  return ir::kNoValue;
}

ir::ValueId LaneValues::Compute(ir::ValueId v, const Lanes& lanes) {
  const ir::NodeId id = graph_.value(v).producer;
  const Form* const form = FormOf(v);
  if (form == nullptr && in_place_ && AreInPlace(DimsOf(v), lanes)) return Together(v, lanes);
  if (id == ir::kNoNode || factors_[id].rule == nullptr) return ir::kNoValue;
  const ir::Node& node = graph_.node(id);
  const rules::Rule& rule = *factors_[id].rule;
  if (!JoinedSharding(plans_[id].results[v - node.first_result], DimsOf(v), lanes, GridOf(id))) {
    return ir::kNoValue;
  }
  if (form != nullptr && AreSplit(form->lanes)) return Converted(v, Form(*form), lanes);
  if (rule.random || node.num_results != 1 || !node.groups.empty()) return ir::kNoValue;
  switch (rule.facts.dims) {
    case rules::DimsUse::kFills:
      return Filled(id, lanes);
    case rules::DimsUse::kExpands:
      return Expanded(id, lanes);
    case rules::DimsUse::kReshapes:
      return Reshaped(id, lanes);
    case rules::DimsUse::kPermutes: {
      Lanes before = lanes;
      const std::vector<int> came = Sources(id);
      for (Lane& lane : before) {
        lane.dim = came[lane.dim];
        if (lane.whole >= 0) lane.whole = came[lane.whole];
      }
      const ir::ValueId joined = Without(node.operands[0], before);
      return joined == ir::kNoValue ? joined : PermutedDims(id, joined, before);
    }
    default:
      return rule.elementwise && rule.local == nullptr ? Elementwise(id, lanes) : ir::kNoValue;
  }
}

// Of a value that lanes were split from, and are put into again elsewhere: its parts in another
// order.
ir::ValueId LaneValues::Converted(ir::ValueId v, const Form& form, const Lanes& lanes) {
  const ir::NodeId id = graph_.value(v).producer;
  const ir::Node& node = graph_.node(id);
  const int grid = plans_[id].grid;
  if (!AreSplit(lanes) || lanes.size() != form.lanes.size()) return ir::kNoValue;
  for (const Lane lane : lanes) {
    const bool there = std::any_of(form.lanes.begin(), form.lanes.end(), [&](Lane other) {
      return other.dim == lane.dim && other.size == lane.size;
    });
    if (!there) return ir::kNoValue;
  }
  const Sharding& sharding = plans_[id].results[v - node.first_result];
  const Dims& dims = DimsOf(v);
  const Sharding from = *JoinedSharding(sharding, dims, form.lanes, GridOf(id));
  const Sharding to = *JoinedSharding(sharding, dims, lanes, GridOf(id));
  const Apart apart = Regroup(sharding, dims, form.lanes, lanes, GridOf(id));
  std::vector<int64_t> parts;  // that are not of size 1
  for (const int64_t part : apart.order) {
    if (apart.sizes[part] != 1) parts.push_back(part);
  }
  const Dims joined = JoinedDims(dims, lanes);
  if (std::is_sorted(parts.begin(), parts.end())) {
    return result_.View(node, grid, form.joined, joined, from, to);
  }
  ir::ValueId made = result_.View(node, grid, form.joined, apart.sizes, from, apart.before);
  if (made != ir::kNoValue) made = Permuted(node, grid, made, apart.order, apart.before);
  if (made == ir::kNoValue) return made;
  return result_.View(node, grid, made, joined, apart.after, to);
}

ir::ValueId LaneValues::Sized(ir::NodeId id, const Lanes& lanes, absl::string_view sizes,
                              std::vector<ir::ValueId> operands, std::vector<Sharding> shardings) {
  const ir::Node& node = graph_.node(id);
  const Dims& dims = DimsOf(node.first_result);
  const TensorType type{graph_.type(node.first_result).dtype, JoinedDims(dims, lanes)};
  WantedPlan wanted{.grid = plans_[id].grid, .through = plans_[id].choice};
  wanted.operands = std::move(shardings);
  wanted.results = {*JoinedSharding(plans_[id].results[0], dims, lanes, GridOf(id))};
  if (operands.size() == 1 && result_.type(operands[0]) == type &&
      wanted.operands[0] == wanted.results[0]) {
    return operands[0];
  }
  Attributes attributes = node.attributes;
  attributes.Set(sizes, ToVector(type.dims));
  return result_.Call(node, node.op, std::move(operands), std::move(attributes), node.updates,
                      std::move(wanted), {&type, 1});
}

// Of a value with lanes that were never joined.
ir::ValueId LaneValues::Together(ir::ValueId v, const Lanes& lanes) {
  const ir::ValueId plain = Plain(v);
  const ir::NodeId id = graph_.value(v).producer;
  const int grid = id == ir::kNoNode ? graph_.value(v).annotation->grid : plans_[id].grid;
  const Sharding sharding = result_.MadeSharding(plain);
  const std::optional<Sharding> joined =
      JoinedSharding(sharding, DimsOf(v), lanes, graph_.grid(grid));
  if (!joined || !AreSplit(lanes)) return ir::kNoValue;
  const Apart apart = TakeApart(sharding, DimsOf(v), lanes, graph_.grid(grid));
  const ir::Node& like = graph_.node(id == ir::kNoNode ? 0 : id);
  Dims sizes;
  std::vector<int64_t> order(apart.order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sizes.push_back(apart.sizes[apart.order[i]]);
    order[apart.order[i]] = static_cast<int64_t>(i);
  }
  ir::ValueId made = result_.View(like, grid, plain, sizes, sharding, apart.after);
  if (made != ir::kNoValue && !std::is_sorted(order.begin(), order.end())) {
    made = Permuted(like, grid, made, order, apart.after);
  }
  if (made == ir::kNoValue) return made;
  return result_.View(like, grid, made, JoinedDims(DimsOf(v), lanes), apart.before, *joined);
}

ir::ValueId LaneValues::Filled(ir::NodeId id, const Lanes& lanes) {
  const absl::string_view sizes = factors_[id].rule->facts.sizes;
  if (sizes.empty() || !graph_.node(id).operands.empty()) return ir::kNoValue;
  return Sized(id, lanes, sizes, {}, {});
}

// An operand that is the same along a lane and along that of which the lane is a part is expanded
// to the size of both.
ir::ValueId LaneValues::Expanded(ir::NodeId id, const Lanes& lanes) {
  const ir::Node& node = graph_.node(id);
  ir::ValueId u = node.operands[0];
  const Form* form = FormOf(u);
  ir::NodeId reader = id;
  // What was expanded twice was expanded once.
  for (ir::NodeId at = graph_.value(u).producer; form == nullptr && at != ir::kNoNode;
       at = graph_.value(u).producer) {
    const rules::Rule* const rule = factors_[at].rule;
    if (rule == nullptr || rule->facts.dims != rules::DimsUse::kExpands) break;
    reader = at;
    u = graph_.node(at).operands[0];
    form = FormOf(u);
  }
  const Lanes none;
  const Lanes own = form == nullptr ? none : form->lanes;
  const Dims& from = DimsOf(u);
  const int added = graph_.type(node.first_result).rank() - graph_.type(u).rank();
  Lanes kept;  // those of the operand that hold other values, as lanes of the result
  for (const Lane lane : own) {
    if (lane.size > 0 || lane.whole == Lane::kSummed) return ir::kNoValue;
    if (lane.whole >= 0) kept.push_back({lane.dim + added, lane.whole + added});
    const bool wanted = std::any_of(lanes.begin(), lanes.end(),
                                    [&](Lane other) { return other.dim == lane.dim + added; });
    if (!wanted || (lane.whole >= 0 && !Holds(lanes, kept.back()))) return ir::kNoValue;
    const Dims& to = DimsOf(node.first_result);
    if (lane.whole >= 0 && from[lane.whole] != to[lane.whole + added]) return ir::kNoValue;
  }
  const auto repeats = [&](int d) {  // of the result
    return d < added || from[d - added] == 1 || Holds(own, {d - added, Lane::kEverywhere});
  };
  Lanes ones;  // dimensions of size 1 of the operand without its lanes
  for (const Lane lane : lanes) {
    if (Holds(kept, lane)) continue;
    const bool whole = lane.whole == Lane::kEverywhere ||
                       (lane.whole >= 0 && (lane.whole < added || from[lane.whole - added] == 1));
    if (lane.size > 0 || !repeats(lane.dim) || !whole) return ir::kNoValue;
    const int dim = lane.dim - added;
    if (dim >= 0 && !IsLane(own, dim)) {
      ones.push_back({NumberWithout(own, dim), Lane::kEverywhere});
    }
  }
  std::optional<Sharding> operand =
      JoinedSharding(plans_[reader].operands[0], from, own, GridOf(reader));
  if (!operand) return ir::kNoValue;
  ir::ValueId source = WithoutOnesOf(node, plans_[id].grid,
                                     form == nullptr ? Plain(u) : form->joined, ones, *operand);
  if (source == ir::kNoValue) return source;
  source = result_.WithoutLeadingOnes(source, *operand);
  return Sized(id, lanes, kExpandedSizes, {source}, {*std::move(operand)});
}

ir::ValueId LaneValues::Reshaped(ir::NodeId id, const Lanes& lanes) {
  const ir::Node& node = graph_.node(id);
  const Dims &from = DimsOf(node.operands[0]), &to = DimsOf(node.first_result);
  const std::optional<Lanes> before = AfterReshape(to, lanes, from);
  if (!before || before->empty()) return ir::kNoValue;
  const std::optional<Lanes> after = AfterReshape(from, *before, to);
  const std::optional<Sharding> operand =
      JoinedSharding(plans_[id].operands[0], from, *before, GridOf(id));
  if (!operand || !after || !AreEqual(OfNextDims(*after, to), OfNextDims(lanes, to))) {
    return ir::kNoValue;
  }
  const ir::ValueId joined = WithoutAs(node.operands[0], *before, *operand);
  if (joined == ir::kNoValue) return joined;
  return result_.View(node, plans_[id].grid, joined, JoinedDims(to, lanes), *operand,
                      *JoinedSharding(plans_[id].results[0], to, lanes, GridOf(id)));
}

ir::ValueId LaneValues::Elementwise(ir::NodeId id, const Lanes& lanes) {
  const ir::Node& node = graph_.node(id);
  const NodePlan& plan = plans_[id];
  const Dims& dims = DimsOf(node.first_result);
  const TensorType type{graph_.type(node.first_result).dtype, JoinedDims(dims, lanes)};
  WantedPlan wanted{.grid = plan.grid, .through = plan.choice};
  wanted.results = {*JoinedSharding(plan.results[0], dims, lanes, GridOf(id))};
  std::vector<ir::ValueId> operands;
  for (size_t k = 0; k < node.operands.size(); ++k) {
    const ir::ValueId v = node.operands[k];
    if (v == ir::kNoValue) return v;
    const int behind = static_cast<int>(dims.size()) - graph_.type(v).rank();
    const auto has = [&](int d) { return d >= behind && DimsOf(v)[d - behind] == dims[d]; };
    Lanes own, ones;
    for (const Lane lane : lanes) {
      if (lane.size > 0) return ir::kNoValue;
      const bool whole = lane.whole >= 0 && has(lane.whole);
      if (has(lane.dim)) {
        own.push_back({lane.dim - behind, whole ? lane.whole - behind : Lane::kEverywhere});
      } else if (whole && dims[lane.whole] != 1) {
        return ir::kNoValue;
      } else if (lane.dim >= behind) {
        ones.push_back({lane.dim - behind, Lane::kEverywhere});
      }
    }
    std::optional<Sharding> sharding = JoinedSharding(plan.operands[k], DimsOf(v), own, GridOf(id));
    if (!sharding) return ir::kNoValue;
    ir::ValueId operand = WithoutAs(v, own, *sharding);
    if (operand == ir::kNoValue) return operand;
    for (Lane& one : ones) one.dim = NumberWithout(own, one.dim);
    operand = WithoutOnesOf(node, plan.grid, operand, ones, *sharding);
    if (operand == ir::kNoValue) return operand;
    operands.push_back(operand);
    wanted.operands.push_back(*std::move(sharding));
  }
  return result_.Call(node, node.op, std::move(operands), node.attributes, node.updates,
                      std::move(wanted), {&type, 1});
}

}  // namespace spmd::partition
