// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/join_lanes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "csrc/partition/joined_graph.h"
#include "csrc/partition/lane_dims.h"
#include "csrc/partition/lane_factors.h"
#include "csrc/partition/lane_views.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {
namespace {

class Joiner : private LaneViews {
 public:
  using LaneViews::LaneViews;

  std::optional<Joined> Run() {
    if (!AnyLanes()) return std::nullopt;
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
    return result_.Plan();
  }

 private:
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
    if (rule == nullptr) return false;
    if (!node.groups.empty() && rule->facts.dims != rules::DimsUse::kInDim) return false;
    if (node.operands.empty() || node.operands[0] == ir::kNoValue) return false;
    const Form* const form = FormOf(node.operands[0]);
    const bool single = node.num_results == 1;
    if (single && form != nullptr && rule->facts.dims == rules::DimsUse::kReduces &&
        Sum(id, *form)) {
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
        return Call(id) || ProductOfLanes(id) || ProductOfRests(id);
      case rules::DimsUse::kReduces:
      case rules::DimsUse::kAlong:
      case rules::DimsUse::kInDim:
      case rules::DimsUse::kForEach:
      case rules::DimsUse::kClassOfRow:
        return Call(id);
      default:
        break;
    }
    if (!single) return false;
    if (form != nullptr && HasSums(form->lanes)) return Linear(id, *form);
    if (rule->facts.is_operand) return form != nullptr && Remember(id, *form);
    const bool elementwise = rule->elementwise && rule->local == nullptr;
    return (elementwise || rule->facts.product.has_value()) && Call(id);
  }

  // What the op reads without lanes.
  struct Fit {
    rules::OpFactors factors;
    LaneFactors lanes;
    std::vector<Lanes> of_operands;
  };

  // The operands with the lanes `given` (null: none); those that are `open` get the lanes that the
  // others make necessary.
  std::optional<Fit> FitTo(ir::NodeId id, rules::OpFactors factors,
                           absl::Span<const Lanes* const> given, const std::vector<bool>& open) {
    const ir::Node& node = graph_.node(id);
    std::optional<LaneFactors> lanes = FindLaneFactors(factors, given, open);
    if (!lanes) return std::nullopt;
    Fit fit{std::move(factors), *std::move(lanes), {}};
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      std::optional<Lanes> own = given[k] == nullptr ? Lanes() : *given[k];
      if (v != ir::kNoValue && open[k]) {
        own = LanesOfOperand(fit.factors, static_cast<int>(k), fit.lanes);
      }
      if (!own) return std::nullopt;
      fit.of_operands.push_back(*std::move(own));
    }
    return fit;
  }

  // A call of the same op, or of one that does the same for one index, on operands without lanes:
  // as they are known; else in the forms that those from which lanes were split make necessary.
  bool Call(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const size_t count = node.operands.size();
    std::vector<const Lanes*> given;
    std::vector<bool> none(count, false), open;
    size_t split = 0;
    bool any = false;
    bool rests = false;  // a dimension of which a device has one index
    for (const ir::ValueId v : node.operands) {
      const Form* const form = v == ir::kNoValue ? nullptr : FormOf(v);
      given.push_back(form == nullptr ? nullptr : &form->lanes);
      open.push_back(v != ir::kNoValue && (form == nullptr || !AreSplit(form->lanes)));
      any = any || form != nullptr;
      for (const Lane lane : form == nullptr ? Lanes() : form->lanes) {
        rests = rests || (lane.whole >= 0 && DimsOf(v)[lane.whole] == 1);
      }
      split += v == ir::kNoValue || open.back() ? 0 : 1;
    }
    if (!any) return false;
    const rules::OpFactors factors = rests ? FactorsWithOnes(id) : *factors_[id];
    if (CallWith(id, FitTo(id, factors, given, none))) return true;
    if (split == 0) return ProductInPlace(id, factors);
    if (count > split && CallWith(id, FitTo(id, factors, given, open))) return true;
    for (size_t k = 0; k < count && split > 1; ++k) {
      if (given[k] != nullptr && !open[k] &&
          CallLike(id, factors, static_cast<int>(k), *given[k])) {
        return true;
      }
    }
    if (CallInOtherForms(id)) return true;
    if (count == split) return false;
    if (!factors_[id].rule->elementwise) return ProductInPlace(id, factors);
    // The result is worth more without lanes than with them, as far as is known.
    put_together_ = true;
    const bool done = CallWith(id, FitTo(id, factors, given, open));
    put_together_ = false;
    return done;
  }

  // A product of a tensor that has no other form, such as a weight f32[x,d,n] of one head on each
  // device. Its lanes lie before a dimension of which they become parts.
  bool ProductInPlace(ir::NodeId id, const rules::OpFactors& factors) {
    if (factors_[id].rule->facts.dims != rules::DimsUse::kBatches) return false;
    in_place_ = true;
    bool done = false;
    for (size_t k = 0; k < graph_.node(id).operands.size() && !done; ++k) {
      const ir::ValueId v = graph_.node(id).operands[k];
      const AxisList& axes = plans_[id].operands[k].dims[0].axes;
      if (FormOf(v) != nullptr || axes.empty() || GridOf(id).size(axes) != DimsOf(v)[0]) continue;
      for (int d = 1; d < graph_.type(v).rank() && !done; ++d) {
        done = CallLike(id, factors, static_cast<int>(k), {{0, d}});
      }
    }
    in_place_ = false;
    return done;
  }

  // The call in which operand k has the lanes `lanes`, and the others those that this makes
  // necessary.
  bool CallLike(ir::NodeId id, const rules::OpFactors& factors, int k, const Lanes& lanes) {
    const size_t count = graph_.node(id).operands.size();
    std::vector<const Lanes*> given(count, nullptr);
    std::vector<bool> open(count, true);
    for (size_t i = 0; i < count; ++i) open[i] = graph_.node(id).operands[i] != ir::kNoValue;
    given[k] = &lanes;
    open[k] = false;
    return CallWith(id, FitTo(id, factors, given, open));
  }

  rules::OpFactors FactorsWithOnes(ir::NodeId id) const {
    const rules::OpCall call = rules::OpCall::Of(graph_, graph_.node(id));
    absl::StatusOr<rules::OpFactors> found = rules::FactorsWithOnes(*factors_[id].rule, call);
    return found.ok() ? *std::move(found) : *factors_[id];
  }

  // Lanes may be parts of a dimension of which a device has nothing else (one head, say).
  bool CallInOtherForms(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    std::optional<rules::OpFactors> factors;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      if (v == ir::kNoValue || FormOf(v) == nullptr || !AreSplit(FormOf(v)->lanes)) continue;
      const Form form = *FormOf(v);
      const Dims& dims = DimsOf(v);
      for (size_t i = 0; i < form.lanes.size(); ++i) {
        for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
          if (d == form.lanes[i].whole || IsLane(form.lanes, d)) continue;
          if (dims[d] != 1 && !form.moved) continue;
          if (!factors) factors = FactorsWithOnes(id);
          Lanes lanes = form.lanes;
          lanes[i].whole = d;
          if (CallLike(id, *factors, static_cast<int>(k), lanes)) return true;
        }
      }
    }
    return false;
  }

  // Whether nothing but a sum (or what else `kind` says) reads the value, or what is only a view of
  // it or linear in it.
  bool IsReduced(ir::ValueId v, ReduceKind kind) const {
    if (users_[v].size() != 1 || leaves_[v]) return false;
    const ir::NodeId user = users_[v][0];
    if (factors_[user].rule == nullptr) return false;
    const rules::OpFacts& facts = factors_[user].rule->facts;
    if (facts.dims == rules::DimsUse::kReduces) return true;
    const bool view = facts.dims == rules::DimsUse::kReshapes ||
                      facts.dims == rules::DimsUse::kPermutes || facts.is_operand;
    return (view || IsLinear(user, kind)) && IsReduced(graph_.node(user).first_result, kind);
  }

  // Whether the value is read by reshapes only.
  bool IsReshapedOnly(ir::ValueId v) const {
    return !leaves_[v] && std::all_of(users_[v].begin(), users_[v].end(), [&](ir::NodeId user) {
      const rules::Rule* const rule = factors_[user].rule;
      return rule != nullptr && rule->facts.dims == rules::DimsUse::kReshapes;
    });
  }

  // The dimensions of size 1 that a sum over lanes, and over others, leaves in their places; none
  // if it leaves none in the place of a lane.
  Lanes LeftBySum(ir::NodeId id, const Lanes& of_operand) const {
    const ir::Node& node = graph_.node(id);
    const bool keeps = factors_[id].rule->facts.dims == rules::DimsUse::kReduces &&
                       node.attributes.GetBoolOr("keepdim", false);
    if (!keeps) return {};
    Lanes left;
    bool any = false;
    const int rank = graph_.type(node.first_result).rank();
    for (int64_t d : node.attributes.GetIntsOr("dim", {})) {
      const int dim = static_cast<int>(d < 0 ? d + rank : d);
      left.push_back({dim, Lane::kEverywhere});
      any = any || IsLane(of_operand, dim);
    }
    return any ? left : Lanes();
  }

  bool CallWith(ir::NodeId id, std::optional<Fit> fit) {
    if (!fit) return false;
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const rules::Rule& rule = *factors_[id].rule;
    for (const rules::Window& window : fit->factors.windows) {
      const int f = window.factor;
      if (fit->lanes.is_lane[f] || !fit->lanes.of[f].empty()) return false;
      if (!fit->lanes.merged[f].empty()) return false;
    }
    WantedPlan wanted{.grid = plan.grid, .through = plan.choice};
    std::vector<Lanes> of_results;  // with those that a sum leaves
    std::vector<TensorType> types;
    const Lanes left = LeftBySum(id, fit->of_operands[0]);
    // Who reads them with these dimensions would need a view more.
    if (!left.empty() && !IsReshapedOnly(node.first_result)) return false;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      std::optional<Lanes> mine = LanesOfResult(fit->factors, r, fit->lanes);
      if (!mine || (!mine->empty() && !MayBeJoined(id, r, *mine))) return false;
      if (HasSums(*mine)) {
        if (!plan.choice.through.empty() || rule.elementwise || node.num_results > 1) return false;
        const auto is_left = [&](Lane lane) {
          return lane.whole == Lane::kSummed && !IsReduced(v, lane.reduce);
        };
        if (std::any_of(mine->begin(), mine->end(), is_left)) return false;
      }
      const Sharding sharding = *JoinedSharding(plan.results[r], DimsOf(v), *mine, GridOf(id));
      Lanes gone = left;
      for (Lane& lane : gone) lane.dim = NumberWithout(*mine, lane.dim);
      wanted.results.push_back(WithoutDims(sharding, gone));
      mine->insert(mine->end(), left.begin(), left.end());
      types.push_back({graph_.type(v).dtype, JoinedDims(DimsOf(v), *mine)});
      of_results.push_back(*std::move(mine));
    }
    const std::optional<Attributes> attributes =
        AttributesWithout(id, fit->of_operands[0], of_results[0]);
    if (!attributes) return false;
    std::vector<ir::ValueId> operands;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      operands.push_back(ir::kNoValue);
      if (v == ir::kNoValue) {
        wanted.operands.push_back(Sharding::Replicated(0));
        continue;
      }
      const std::optional<Sharding> sharding =
          JoinedSharding(plan.operands[k], DimsOf(v), fit->of_operands[k], GridOf(id));
      operands[k] = sharding ? WithoutAs(v, fit->of_operands[k], *sharding) : ir::kNoValue;
      if (operands[k] == ir::kNoValue) return false;
      wanted.operands.push_back(*sharding);
      if (rule.elementwise && !DropOnes(id, static_cast<int>(k), fit->of_operands[k], of_results[0],
                                        operands, wanted)) {
        return false;
      }
    }
    if (rule.elementwise) DropLeadingOnes(types[0].dims, operands, wanted);
    const std::vector<Sharding> made = wanted.results;
    const ir::ValueId joined =
        EmitCall(id, *fit, of_results, *attributes, std::move(operands), std::move(wanted), types);
    if (joined == ir::kNoValue) return false;
    bool all = true;
    for (int r = 0; r < node.num_results; ++r) {
      const ir::ValueId v = node.first_result + r;
      Lanes lanes = of_results[r];
      lanes.resize(lanes.size() - left.size());
      ir::ValueId whole = joined + r;
      if (!left.empty()) {
        whole = result_.View(node, plan.grid, whole, JoinedDims(DimsOf(v), lanes), made[r],
                             *JoinedSharding(plan.results[r], DimsOf(v), lanes, GridOf(id)));
      }
      all = (lanes.empty() ? BeSame(v, whole) : Remember(id, {whole, lanes}, r)) && all;
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
    if (!AreSplit(lanes) && !IsReduced(r, ReduceKind::kSum)) return false;
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

  // A product for each index of dimension 0, of which the major part is a lane, and the rest of
  // what the lane was split from was a dimension of size 1 that is gone: f32[x · b,m,k] of one head
  // on each device. The heads become a dimension behind the batch.
  bool ProductOfRests(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const absl::string_view op = factors_[id].rule->facts.batched;
    const ir::ValueId r = node.first_result;
    if (!plan.choice.through.empty() || op.empty()) return false;
    Lanes lanes;  // of the batch, or of the heads, which are dimension 1
    for (const ir::ValueId v : node.operands) {
      const Form* const form = v == ir::kNoValue ? nullptr : FormOf(v);
      if (form == nullptr || !AreSplit(form->lanes)) return false;
      Lanes mine = form->lanes;
      for (Lane& lane : mine) {
        if (lane.dim != 0 || lane.size == 0) return false;
        lane.whole = std::min(lane.whole, 1);
      }
      if (!lanes.empty() && !AreSame(lanes, mine)) return false;
      lanes = std::move(mine);
    }
    const auto of_heads =
        std::count_if(lanes.begin(), lanes.end(), [](Lane lane) { return lane.whole == 1; });
    if (of_heads != 1 || !MayBeJoined(id, 0, lanes)) return false;
    // With a dimension of size 1 behind the first one, of which the lanes are parts.
    const auto apart = [](const Dims& dims) {
      Dims more = dims;
      more.insert(more.begin() + 1, 1);
      return more;
    };
    const auto sharding = [&](const Dims& dims, const Sharding& given) {
      Sharding more = given;
      more.dims.insert(more.dims.begin() + 1, DimSharding{});
      return JoinedSharding(more, apart(dims), lanes, GridOf(id));
    };
    WantedPlan wanted{.grid = plan.grid};
    std::vector<ir::ValueId> operands;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ir::ValueId v = node.operands[k];
      const std::optional<Sharding> own =
          JoinedSharding(plan.operands[k], DimsOf(v), lanes, GridOf(id));
      const std::optional<Sharding> without = sharding(DimsOf(v), plan.operands[k]);
      const ir::ValueId joined = own && without ? Without(v, lanes) : ir::kNoValue;
      if (joined == ir::kNoValue) return false;
      operands.push_back(result_.View(node, plan.grid, joined, JoinedDims(apart(DimsOf(v)), lanes),
                                      *own, *without));
      if (operands.back() == ir::kNoValue) return false;
      wanted.operands.push_back(*without);
    }
    const std::optional<Sharding> result = sharding(DimsOf(r), plan.results[0]);
    if (!result) return false;
    wanted.results = {*result};
    const TensorType type{graph_.type(r).dtype, JoinedDims(apart(DimsOf(r)), lanes)};
    const ir::ValueId product =
        result_.Call(node, std::string(op), std::move(operands), {}, -1, wanted, {&type, 1});
    if (product == ir::kNoValue) return false;
    const ir::ValueId joined =
        result_.View(node, plan.grid, product, JoinedDims(DimsOf(r), lanes), *result,
                     *JoinedSharding(plan.results[0], DimsOf(r), lanes, GridOf(id)));
    return Remember(id, {joined, lanes, /*moved=*/true});
  }

  // Drops the dimensions of size 1 that an operand of an element-wise op has in the place of lanes
  // of the result. False if it has others than those.
  bool DropOnes(ir::NodeId id, int k, const Lanes& own, const Lanes& of_result,
                std::vector<ir::ValueId>& operands, WantedPlan& wanted) {
    const ir::Node& node = graph_.node(id);
    const ir::ValueId v = node.operands[k];
    const int behind = graph_.type(node.first_result).rank() - graph_.type(v).rank();
    Lanes ones;
    for (const Lane lane : of_result) {
      const int dim = lane.dim - behind;
      if (lane.size > 0 || dim < 0 || IsLane(own, dim)) continue;
      if (DimsOf(v)[dim] != 1) return false;
      ones.push_back({NumberWithout(own, dim), Lane::kEverywhere});
    }
    operands[k] = WithoutOnesOf(node, plans_[id].grid, operands[k], ones, wanted.operands[k]);
    return operands[k] != ir::kNoValue;
  }

  // Operands that broadcast need no leading dimensions of size 1: what they were reshaped from is
  // read.
  void DropLeadingOnes(const Dims& result, std::vector<ir::ValueId>& operands,
                       WantedPlan& wanted) const {
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == ir::kNoValue || result_.type(operands[k]).dims == result) continue;
      operands[k] = result_.WithoutLeadingOnes(operands[k], wanted.operands[k]);
    }
  }

  ir::ValueId EmitCall(ir::NodeId id, const Fit& fit, absl::Span<const Lanes> of_results,
                       const Attributes& attributes, std::vector<ir::ValueId> operands,
                       WantedPlan wanted, absl::Span<const TensorType> types) {
    const ir::Node& node = graph_.node(id);
    const rules::OpFacts& facts = factors_[id].rule->facts;
    const auto is_matrix = [&](int k) { return result_.type(operands[k]).rank() == 2; };
    std::string op = node.op;
    if (!facts.for_one.empty() && is_matrix(0) && is_matrix(1)) op = std::string(facts.for_one);
    const std::optional<rules::MatrixProduct> form = rules::FactsOf(op).product;
    if (form.has_value() && wanted.through.through.empty() &&
        result_.MultipliesMatrices(operands)) {
      const ir::ValueId v = result_.Product(node, *form, operands[0], operands[1], op, wanted);
      if (v != ir::kNoValue && result_.type(v) == types[0]) return v;
    }
    const ir::ValueId v = result_.Call(node, op, std::move(operands), attributes, node.updates,
                                       std::move(wanted), types);
    if (v == ir::kNoValue || op != node.op || factors_[id].rule->elementwise) return v;
    std::vector<const Lanes*> of_operands;
    for (const Lanes& lanes : fit.of_operands) of_operands.push_back(&lanes);
    return result_.Relates(v, fit.factors, of_operands, of_results) ? v : ir::kNoValue;
  }

  // The node's attributes with the numbers that dimensions have without lanes. nullopt if an op
  // works along one of them that is not the same without.
  std::optional<Attributes> AttributesWithout(ir::NodeId id, const Lanes& of_operand,
                                              const Lanes& of_result) const {
    const ir::Node& node = graph_.node(id);
    const rules::OpFacts& facts = factors_[id].rule->facts;
    Attributes attributes = node.attributes;
    const bool in_dim = facts.dims == rules::DimsUse::kInDim;
    const bool of_sizes = in_dim && !facts.sizes.empty();  // `dim` is one of the result's
    const ir::ValueId v = of_sizes ? node.first_result : node.operands[0];
    const Lanes& lanes = of_sizes ? of_result : of_operand;
    const int rank = graph_.type(v).rank();
    if (of_sizes) {
      attributes.Set(facts.sizes, ToVector(JoinedDims(DimsOf(node.first_result), of_result)));
    }
    if (facts.dims == rules::DimsUse::kReduces) {
      const std::vector<int64_t> given = attributes.GetIntsOr("dim", {});
      std::vector<int64_t> dims;
      for (int64_t d : given) {
        const int dim = static_cast<int>(d < 0 ? d + rank : d);
        if (!IsLane(lanes, dim)) dims.push_back(NumberWithout(lanes, dim));
      }
      if (given.empty()) return attributes;
      if (dims.empty()) return std::nullopt;
      if (!LeftBySum(id, of_operand).empty()) attributes.Set("keepdim", false);
      attributes.Set("dim", std::move(dims));
    }
    if (in_dim || facts.dims == rules::DimsUse::kAlong) {
      const bool list = attributes.Find("dims") != nullptr;
      if (!list && attributes.Find("dim") == nullptr) return std::nullopt;
      std::vector<int64_t> dims = list ? attributes.GetInts("dims") : std::vector<int64_t>{};
      if (!list) dims.push_back(attributes.GetInt("dim"));
      for (int64_t& d : dims) {
        const int dim = static_cast<int>(d < 0 ? d + rank : d);
        // The op may depend on where an index lies in the dimension.
        const bool joined = std::any_of(lanes.begin(), lanes.end(), [dim](Lane lane) {
          return lane.dim == dim || lane.whole == dim;
        });
        if (joined) return std::nullopt;
        d = NumberWithout(lanes, dim);
      }
      if (list) {
        attributes.Set("dims", std::move(dims));
      } else {
        attributes.Set("dim", dims[0]);
      }
    }
    return attributes;
  }
};

}  // namespace

std::optional<Joined> JoinLanes(const ir::Graph& graph,
                                const std::vector<propagate::NodeFactors>& factors,
                                const std::vector<NodePlan>& plans) {
  return Joiner(graph, factors, plans).Run();
}

}  // namespace spmd::partition
