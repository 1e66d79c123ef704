// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/join_lanes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/part.h"
#include "csrc/partition/at_borders.h"
#include "csrc/partition/rewrite.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {
namespace {

// A dimension of which each device has one index.
struct Lane {
  static constexpr int kEverywhere = -1;

  int dim = 0;
  int whole = 0;  // the dimension from which it was split; kEverywhere: all lanes hold the same
};
// Those of one dimension are listed major first.
using Lanes = absl::InlinedVector<Lane, 2>;

// A value of the graph without its lanes: `joined` has the value's other dimensions in their order,
// those from which lanes were split in full length.
struct Form {
  ir::ValueId joined = ir::kNoValue;
  Lanes lanes;
  ir::NodeId expand = ir::kNoNode;  // the node that repeats `joined` for lanes that hold the same
};

bool IsLane(const Lanes& lanes, int dim) {
  return std::any_of(lanes.begin(), lanes.end(), [dim](Lane lane) { return lane.dim == dim; });
}

// The number that dimension `dim`, which is no lane, has without lanes.
int NumberWithout(const Lanes& lanes, int dim) {
  return dim - static_cast<int>(std::count_if(lanes.begin(), lanes.end(),
                                              [dim](Lane lane) { return lane.dim < dim; }));
}

Dims JoinedDims(const Dims& dims, const Lanes& lanes) {
  Dims joined;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (IsLane(lanes, d)) continue;
    joined.push_back(dims[d]);
    for (const Lane lane : lanes) {
      if (lane.whole == d) joined.back() *= dims[lane.dim];
    }
  }
  return joined;
}

// The sharding without lanes that gives each device the same elements. nullopt if a device does not
// have exactly one index of each lane, or if its indices of a joined dimension would not be
// adjacent.
std::optional<Sharding> JoinedSharding(const Sharding& sharding, const Dims& dims,
                                       const Lanes& lanes, const Grid& grid) {
  Sharding joined = sharding;
  joined.dims.clear();
  for (const Lane lane : lanes) {
    const DimSharding& dim = sharding.dims[lane.dim];
    if (dim.axes.empty() || grid.size(dim.axes) != dims[lane.dim] || dim.chunk > 1) {
      return std::nullopt;
    }
  }
  for (int d = 0; d < sharding.rank(); ++d) {
    if (IsLane(lanes, d)) continue;
    const DimSharding& own = sharding.dims[d];
    DimSharding& both = joined.dims.emplace_back();
    for (const Lane lane : lanes) {
      if (lane.whole != d) continue;
      const AxisList& axes = sharding.dims[lane.dim].axes;
      both.axes.insert(both.axes.end(), axes.begin(), axes.end());
    }
    if (both.axes.empty()) {
      both = {own.axes, own.chunk};
    } else if (!own.axes.empty()) {
      const int64_t shards = grid.size(own.axes);
      const bool even = dims[d] % shards == 0 && (own.chunk == 0 || own.chunk == dims[d] / shards);
      if (!even) return std::nullopt;
      both.axes.insert(both.axes.end(), own.axes.begin(), own.axes.end());
    }
  }
  return joined;
}

// `sharding` with its dimensions in the order `order`.
Sharding WithOrder(const Sharding& sharding, absl::Span<const int64_t> order) {
  Sharding ordered = sharding;
  for (size_t i = 0; i < order.size(); ++i) ordered.dims[i] = sharding.dims[order[i]];
  return ordered;
}

// Where a reshape from `from` to `to` only splits dimensions: all parts but the last of each. Empty
// if it does anything else.
Lanes SplitOff(const Dims& from, const Dims& to) {
  Lanes lanes;
  size_t t = 0;
  for (const int64_t size : from) {
    const size_t begin = t;
    int64_t product = 1;
    do {
      if (t == to.size()) return {};
      product *= to[t++];
    } while (product < size);
    if (product != size) return {};
    for (size_t d = begin; d + 1 < t; ++d) {
      lanes.push_back({static_cast<int>(d), static_cast<int>(t) - 1});
    }
  }
  return t == to.size() ? lanes : Lanes{};
}

// True if a reshape that merges the lanes with the dimensions from which they were split keeps the
// order of elements: they lie directly before them, but for dimensions of size 1.
bool AreInPlace(const Dims& dims, const Lanes& lanes) {
  std::vector<int> before(dims.size(), -1);  // by dimension: the last one that lies before it
  for (size_t i = lanes.size(); i-- > 0;) {
    if (lanes[i].whole == Lane::kEverywhere) return false;
    int& at = before[lanes[i].whole];
    if (at < 0) at = lanes[i].whole;
    do {
      --at;
    } while (at > lanes[i].dim && dims[at] == 1);
    if (at != lanes[i].dim) return false;
  }
  return true;
}

Dims WithoutOnes(const Dims& dims) {
  Dims rest;
  for (const int64_t n : dims) {
    if (n != 1) rest.push_back(n);
  }
  return rest;
}

// Where a reshape from `from` to `to` only adds and removes dimensions of size 1: by dimension of
// `from`, that of `to`, or -1. Empty if it does anything else.
std::vector<int> Moved(const Dims& from, const Dims& to) {
  std::vector<int> moved(from.size(), -1);
  size_t t = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] == 1) continue;
    while (t < to.size() && to[t] == 1) ++t;
    if (t == to.size() || to[t] != from[d]) return {};
    moved[d] = static_cast<int>(t++);
  }
  while (t < to.size() && to[t] == 1) ++t;
  return t == to.size() ? moved : std::vector<int>{};
}

constexpr int64_t kTransposed[] = {1, 0};

class Joiner {
 public:
  Joiner(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
         const std::vector<NodePlan>& plans)
      : graph_(graph), factors_(factors), plans_(plans), users_(graph.Users()) {}

  std::optional<Joined> Run() {
    if (!AnyLanes()) return std::nullopt;
    StartLike(graph_, result_);
    plain_.assign(graph_.num_values(), ir::kNoValue);
    leaves_.assign(graph_.num_values(), false);
    for (const ir::Output& output : graph_.outputs()) leaves_[output.value] = true;
    for (const ir::ValueId v : graph_.inputs()) {
      plain_[v] = result_.AddInput(graph_.type(v), graph_.value(v).name);
      result_.Annotate(plain_[v], *graph_.value(v).annotation);
    }
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!Join(id)) Copy(id);
    }
    for (ir::Output output : graph_.outputs()) {
      output.value = Plain(output.value);
      if (output.becomes != ir::kNoValue) output.becomes = plain_[output.becomes];
      result_.AddOutput(output);
    }
    DropUnused();
    if (result_.num_nodes() >= graph_.num_nodes()) return std::nullopt;
    return Plan();
  }

 private:
  // What is known of the plan of a node of the result.
  struct Wanted {
    ir::NodeId old = ir::kNoNode;  // the node of the graph that it is a copy of
    int grid = 0;
    std::vector<Sharding> operands;  // rank 0 for an absent one
    std::optional<Sharding> result;
  };

  static void StartLike(const ir::Graph& from, ir::Graph& to) {
    for (size_t g = 0; g < from.grids().size(); ++g) {
      to.AddGrid(from.grids()[g], from.grid_name(static_cast<int>(g)));
    }
    for (const ir::ScalarKind kind : from.scalars()) to.AddScalar(kind);
    for (const std::string& source : from.sources()) to.AddSource(source);
  }

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
      wanted_[result_.value(it->second).producer].result = plans_[id].results[0];
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
    const bool is_new = wanted_of(v) != nullptr && wanted_of(v)->old == ir::kNoNode && !owned_[v];
    if (!is_new && (leaves_[r] || IsConstraint(graph_, r))) return false;
    if (is_new) {
      owned_[v] = true;
      result_.Annotate(v, *graph_.value(r).annotation);
    }
    plain_[r] = v;
    return true;
  }

  const Wanted* wanted_of(ir::ValueId v) const {
    const ir::NodeId producer = result_.value(v).producer;
    return producer == ir::kNoNode ? nullptr : &wanted_[producer];
  }

  bool Split(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    Lanes lanes = SplitOff(DimsOf(node.operands[0]), DimsOf(node.first_result));
    if (lanes.empty()) return false;
    const ir::ValueId r = node.first_result;
    if (leaves_[r] || IsConstraint(graph_, r)) return false;
    if (!JoinedSharding(plans_[id].results[0], DimsOf(r), lanes, GridOf(id))) return false;
    return Remember(id, {Plain(node.operands[0]), std::move(lanes)});
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
    Wanted wanted{.grid = plans_[id].grid};
    const std::optional<Sharding> operand =
        JoinedSharding(plans_[id].operands[0], from, form.lanes, GridOf(id));
    wanted.result = JoinedSharding(plans_[id].results[0], to, lanes, GridOf(id));
    if (!operand || !wanted.result) return false;
    wanted.operands = {*operand};
    const Dims dims = JoinedDims(to, lanes);
    const ir::ValueId joined = BuilderFor(node).View(form.joined, {dims.begin(), dims.end()});
    Note(joined, std::move(wanted));
    return Remember(id, {joined, std::move(lanes)});
  }

  // A reshape that ends lanes, and adds or removes dimensions of size 1.
  bool End(ir::NodeId id, const Form& form) {
    const ir::Node& node = graph_.node(id);
    const Dims& to = DimsOf(node.first_result);
    const std::optional<Sharding> operand =
        JoinedSharding(plans_[id].operands[0], DimsOf(node.operands[0]), form.lanes, GridOf(id));
    if (!operand) return false;
    const ir::ValueId v = BuilderFor(node).View(form.joined, {to.begin(), to.end()});
    Note(v, {ir::kNoNode, plans_[id].grid, {*operand}, plans_[id].results[0]});
    return BeSame(id, v);
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
      joined = Permuted(id, joined, order, *operand);
    }
    return Remember(id, {joined, std::move(lanes)});
  }

  // A new value: `v`, sharded as `sharding`, with its dimensions in the order `order`. A product is
  // computed in this order.
  ir::ValueId Permuted(ir::NodeId id, ir::ValueId v, const std::vector<int64_t>& order,
                       const Sharding& sharding) {
    const ir::Node& node = graph_.node(id);
    const Sharding ordered = WithOrder(sharding, order);
    const Wanted* const made = wanted_of(v);
    if (made != nullptr && made->old == ir::kNoNode && made->result == sharding) {
      const ir::Node& product = result_.node(result_.value(v).producer);
      const std::optional<rules::MatrixProduct>& form = rules::FactsOf(product.op).product;
      if (form.has_value() && AreMatrices(product)) {
        // (L R)ᵀ = Rᵀ Lᵀ
        Wanted wanted{made->old, made->grid, {made->operands[1], made->operands[0]}, ordered};
        const ir::ValueId other =
            Product(node, {!form->right_transposed, !form->left_transposed}, product.operands[1],
                    product.operands[0], "", std::move(wanted));
        if (other != ir::kNoValue) return other;
      }
    }
    const ir::ValueId permuted = BuilderFor(node).Permute(v, order);
    Note(permuted, {ir::kNoNode, plans_[id].grid, {sharding}, ordered});
    return permuted;
  }

  // Whether the node of the new graph multiplies two matrices and does nothing else.
  bool AreMatrices(const ir::Node& node) const {
    return node.operands.size() >= 2 && result_.type(node.operands[0]).rank() == 2 &&
           result_.type(node.operands[1]).rank() == 2 &&
           std::all_of(node.operands.begin() + 2, node.operands.end(),
                       [](ir::ValueId v) { return v == ir::kNoValue; });
  }

  // The product of two matrices, of which operands that are transposed are read as they were before
  // if an op does that. `own` is the op that computes the product as it is given; if there is none,
  // the result may be ir::kNoValue.
  ir::ValueId Product(const ir::Node& like, rules::MatrixProduct form, ir::ValueId left,
                      ir::ValueId right, absl::string_view own, Wanted wanted) {
    const ir::ValueId operands[] = {left, right};
    ir::ValueId before[] = {BeforeTransposition(left), BeforeTransposition(right)};
    for (const int flipped : {3, 1, 2, 0}) {
      if (flipped == 0 && !own.empty()) break;
      if (((flipped & 1) && before[0] == ir::kNoValue) ||
          ((flipped & 2) && before[1] == ir::kNoValue)) {
        continue;
      }
      const rules::MatrixProduct wish{form.left_transposed != ((flipped & 1) != 0),
                                      form.right_transposed != ((flipped & 2) != 0)};
      const rules::Rule* const rule = rules::FindProduct(wish);
      if (rule == nullptr || rule->pattern == nullptr) continue;
      std::vector<ir::ValueId> call;
      Wanted turned = wanted;
      for (int k = 0; k < 2; ++k) {
        const bool turn = (flipped & (1 << k)) != 0;
        call.push_back(turn ? before[k] : operands[k]);
        if (turn) turned.operands[k] = WithOrder(wanted.operands[k], kTransposed);
      }
      call.resize(rule->pattern->operands.size(), ir::kNoValue);
      turned.operands.resize(call.size(), Sharding::Replicated(0));
      const ir::ValueId v = Emit(like, rule->op, std::move(call), {}, -1, std::move(turned));
      if (v != ir::kNoValue) return v;
    }
    return ir::kNoValue;
  }

  // The matrix of which `v` is the transposed one, if it is.
  ir::ValueId BeforeTransposition(ir::ValueId v) const {
    const ir::NodeId producer = result_.value(v).producer;
    if (producer == ir::kNoNode || result_.type(v).rank() != 2) return ir::kNoValue;
    const ir::Node& node = result_.node(producer);
    if (rules::FactsOf(node.op).dims != rules::DimsUse::kPermutes) return ir::kNoValue;
    const std::vector<int64_t>& dims = node.attributes.GetInts("dims");
    return (dims[0] & 1) == 1 ? node.operands[0] : ir::kNoValue;
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
      form.joined = BeforeReshape(form.joined, dims);
      if (form.joined == ir::kNoValue) {
        form.joined = BuilderFor(node).View(Plain(node.operands[0]), {dims.begin(), dims.end()});
        const Sharding& sharding = plans_[id].operands[0];
        Note(form.joined, {ir::kNoNode, plans_[id].grid, {sharding}, WithoutDims(sharding, ones)});
      }
    }
    return Remember(id, std::move(form));
  }

  // What was reshaped to `v` and had the sizes `dims`; ir::kNoValue if nothing had.
  ir::ValueId BeforeReshape(ir::ValueId v, const Dims& dims) const {
    while (result_.type(v).dims != dims) {
      const ir::NodeId producer = result_.value(v).producer;
      if (producer == ir::kNoNode) return ir::kNoValue;
      const ir::Node& node = result_.node(producer);
      if (rules::FactsOf(node.op).dims != rules::DimsUse::kReshapes) return ir::kNoValue;
      v = node.operands[0];
    }
    return v;
  }

  // The lanes of a call, as factors of its rule.
  struct LaneFactors {
    std::vector<std::vector<int>> of;  // by factor: its lanes, major first
    std::vector<bool> is_lane;         // by factor
  };

  // nullopt if there are none, or if the lanes of operands do not correspond.
  std::optional<LaneFactors> LanesOf(ir::NodeId id) const {
    const ir::Node& node = graph_.node(id);
    const rules::OpFactors& nf = *factors_[id];
    LaneFactors lanes{std::vector<std::vector<int>>(nf.factors.size()),
                      std::vector<bool>(nf.factors.size(), false)};
    const auto factor = [&](size_t k, int dim) {
      const rules::DimFactors& factors = nf.operands[k][dim];
      return factors.size() == 1 ? factors[0] : -1;
    };
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const Form* const form = FormOf(node.operands[k]);
      if (form == nullptr) continue;
      std::vector<std::vector<int>> mine(nf.factors.size());
      for (const Lane lane : form->lanes) {
        const int f = factor(k, lane.dim);
        if (f < 0) return std::nullopt;
        lanes.is_lane[f] = true;
        if (lane.whole == Lane::kEverywhere) continue;
        const int whole = factor(k, lane.whole);
        if (whole < 0) return std::nullopt;
        mine[whole].push_back(f);
      }
      for (size_t f = 0; f < mine.size(); ++f) {
        if (mine[f].empty()) continue;
        if (!lanes.of[f].empty() && lanes.of[f] != mine[f]) return std::nullopt;
        lanes.of[f] = std::move(mine[f]);
      }
    }
    std::vector<int> times(nf.factors.size(), 0);
    bool any = false;
    for (const std::vector<int>& of : lanes.of) {
      for (const int f : of) {
        ++times[f];
        any = true;
      }
    }
    if (!any) return std::nullopt;
    for (size_t f = 0; f < times.size(); ++f) {
      if (times[f] != (lanes.is_lane[f] ? 1 : 0)) return std::nullopt;
      if (lanes.is_lane[f] && !lanes.of[f].empty()) return std::nullopt;
    }
    return lanes;
  }

  // Whether operand k has the lanes of what it has, and no others.
  bool Fits(ir::NodeId id, int k, const LaneFactors& lanes) const {
    const rules::OpFactors& nf = *factors_[id];
    const Form* const form = FormOf(graph_.node(id).operands[k]);
    for (size_t whole = 0; whole < lanes.of.size(); ++whole) {
      for (const int f : lanes.of[whole]) {
        bool split = false, everywhere = false;
        for (const Lane lane : form == nullptr ? Lanes{} : form->lanes) {
          if (nf.operands[k][lane.dim][0] != f) continue;
          (lane.whole == Lane::kEverywhere ? everywhere : split) = true;
        }
        if (nf.InOperand(f, k) != (split || everywhere)) return false;
        if (nf.InOperand(static_cast<int>(whole), k) != split) return false;
      }
    }
    return true;
  }

  static int DimOf(const rules::TensorFactors& tensor, int factor) {
    for (size_t d = 0; d < tensor.size(); ++d) {
      if (tensor[d].size() == 1 && tensor[d][0] == factor) return static_cast<int>(d);
    }
    return -1;
  }

  // A product, sum or element-wise op.
  bool Call(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    const NodePlan& plan = plans_[id];
    const rules::OpFactors& nf = *factors_[id];
    const rules::Rule& rule = *factors_[id].rule;
    const std::optional<LaneFactors> lanes = LanesOf(id);
    if (!lanes) return false;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (node.operands[k] != ir::kNoValue && !Fits(id, static_cast<int>(k), *lanes)) return false;
    }
    const ir::ValueId r = node.first_result;
    Lanes kept, summed;
    for (size_t whole = 0; whole < lanes->of.size(); ++whole) {
      for (const int f : lanes->of[whole]) {
        const int dim = DimOf(nf.results[0], f);
        const int of = DimOf(nf.results[0], static_cast<int>(whole));
        if (dim < 0 && of >= 0) return false;
        if (dim >= 0) (of < 0 ? summed : kept).push_back({dim, of});
      }
    }
    if (!summed.empty() && (rule.elementwise || !kept.empty() || !IsOnlySummed(id, summed))) {
      return false;
    }
    if (summed.empty() && !kept.empty() && (leaves_[r] || IsConstraint(graph_, r))) return false;
    const Lanes& gone = summed.empty() ? kept : summed;

    Wanted wanted{.grid = plan.grid};
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
      const Dims dims = JoinedDims(DimsOf(v), dropped[k]);
      operands[k] = BuilderFor(node).View(operands[k], {dims.begin(), dims.end()});
      Note(operands[k], {ir::kNoNode, plan.grid, {plan.operands[k]}, wanted.operands[k]});
    }
    const ir::ValueId joined = EmitCall(id, *lanes, std::move(operands), std::move(wanted));
    if (joined == ir::kNoValue) return false;
    const TensorType& type = graph_.type(r);
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

  static Sharding WithoutDims(const Sharding& sharding, const Lanes& gone) {
    Sharding rest = sharding;
    rest.dims.clear();
    for (int d = 0; d < sharding.rank(); ++d) {
      if (!IsLane(gone, d)) rest.dims.push_back(sharding.dims[d]);
    }
    return rest;
  }

  ir::ValueId EmitCall(ir::NodeId id, const LaneFactors& lanes, std::vector<ir::ValueId> operands,
                       Wanted wanted) {
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
    ir::Node spec;
    spec.operands.assign(operands.begin(), operands.end());
    if (form.has_value() && AreMatrices(spec)) {
      const ir::ValueId v = Product(node, *form, operands[0], operands[1], op, wanted);
      if (v != ir::kNoValue) return v;
    }
    return Emit(node, op, std::move(operands), std::move(attributes), node.updates,
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

  rules::Builder BuilderFor(const ir::Node& node) {
    return rules::Builder(&result_, node.task, node.source);
  }

  // A new node. ir::kNoValue if the operands do not fit the op.
  ir::ValueId Emit(const ir::Node& like, const std::string& op, std::vector<ir::ValueId> operands,
                   Attributes attributes, int updates, Wanted wanted) {
    const rules::Rule* const rule = rules::Find(op);
    if (rule == nullptr) return ir::kNoValue;
    rules::OpCall call;
    call.op = op;
    for (const ir::ValueId v : operands) {
      call.operands.push_back(v == ir::kNoValue ? nullptr : &result_.type(v));
    }
    call.attributes = &attributes;
    const absl::StatusOr<std::vector<TensorType>> types = rules::InferTypes(*rule, call);
    if (!types.ok() || types->size() != 1) return ir::kNoValue;
    ir::Graph::NodeSpec spec;
    spec.op = op;
    spec.operands.assign(operands.begin(), operands.end());
    spec.attributes = std::move(attributes);
    spec.updates = updates;
    spec.task = like.task;
    spec.source = like.source;
    const ir::ValueId v = result_.Add(std::move(spec), (*types)[0]);
    Note(v, std::move(wanted));
    return v;
  }

  // What is wanted of the node that was just added, of which `v` is the result.
  void Note(ir::ValueId v, Wanted wanted) {
    const Sharding any = Sharding::Replicated(result_.type(v).rank());
    result_.Annotate(v, {wanted.grid, wanted.result.value_or(any).Reduced(), ir::Hold::kDerived});
    wanted_.resize(result_.num_nodes());
    wanted_[result_.value(v).producer] = std::move(wanted);
  }

  // The value as it is in the old graph.
  ir::ValueId Plain(ir::ValueId v) {
    if (plain_[v] != ir::kNoValue) return plain_[v];
    const Form form = *FormOf(v);
    const ir::NodeId id = graph_.value(v).producer;
    const ir::Node& node = graph_.node(id);
    if (form.expand != ir::kNoNode) {
      CopyWith(form.expand, {Plain(graph_.node(form.expand).operands[0])});
      plain_[v] = result_.result(result_.num_nodes() - 1);
      return plain_[v];
    }
    const Dims& dims = DimsOf(v);
    const Sharding& sharding = plans_[id].results[0];
    std::vector<int64_t> order, sizes, back(dims.size());
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
    ir::ValueId made = BuilderFor(node).View(form.joined, std::move(sizes));
    Note(made, {ir::kNoNode,
                plans_[id].grid,
                {*JoinedSharding(sharding, dims, form.lanes, GridOf(id))},
                split});
    if (!std::is_sorted(back.begin(), back.end())) {
      const ir::ValueId view = made;
      made = BuilderFor(node).Permute(view, std::move(back));
      Note(made, {ir::kNoNode, plans_[id].grid, {split}, sharding});
    }
    result_.Annotate(made, *graph_.value(v).annotation);
    return plain_[v] = made;
  }

  void CopyWith(ir::NodeId id, absl::Span<const ir::ValueId> operands) {
    ir::CopyNode(graph_, graph_.node(id), operands, result_);
    wanted_.resize(result_.num_nodes());
    wanted_.back() = {.old = id};
    const ir::Node& copy = result_.nodes().back();
    for (int r = 0; r < copy.num_results; ++r) {
      const ir::ValueId from = graph_.node(id).first_result + r;
      result_.Annotate(copy.first_result + r, *graph_.value(from).annotation);
    }
  }

  void Copy(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    std::vector<ir::ValueId> operands;
    for (const ir::ValueId v : node.operands) operands.push_back(v == ir::kNoValue ? v : Plain(v));
    CopyWith(id, operands);
    for (int r = 0; r < node.num_results; ++r) {
      plain_[node.first_result + r] = result_.nodes().back().first_result + r;
    }
  }

  void DropUnused() {
    const std::vector<bool> used = LiveNodes(result_);
    ir::Graph kept;
    std::vector<Wanted> wanted;
    StartLike(result_, kept);
    std::vector<ir::ValueId> value_of(result_.num_values(), ir::kNoValue);
    for (const ir::ValueId v : result_.inputs()) {
      value_of[v] = kept.AddInput(result_.type(v), result_.value(v).name);
      kept.Annotate(value_of[v], *result_.value(v).annotation);
    }
    for (ir::NodeId id = 0; id < result_.num_nodes(); ++id) {
      if (!used[id]) continue;
      const ir::Node& node = result_.node(id);
      std::vector<ir::ValueId> operands;
      for (const ir::ValueId v : node.operands)
        operands.push_back(v == ir::kNoValue ? v : value_of[v]);
      const ir::NodeId copy = ir::CopyNode(result_, node, operands, kept);
      for (int r = 0; r < node.num_results; ++r) {
        value_of[node.first_result + r] = kept.result(copy, r);
        kept.Annotate(kept.result(copy, r), *result_.value(node.first_result + r).annotation);
      }
      wanted.push_back(std::move(wanted_[id]));
    }
    for (ir::Output output : result_.outputs()) {
      output.value = value_of[output.value];
      if (output.becomes != ir::kNoValue) output.becomes = value_of[output.becomes];
      kept.AddOutput(output);
    }
    result_ = std::move(kept);
    wanted_ = std::move(wanted);
  }

  // The plans that the wishes lead to; nullopt if one cannot be met exactly.
  std::optional<Joined> Plan() {
    absl::StatusOr<std::vector<propagate::NodeFactors>> factors =
        propagate::ComputeFactors(result_);
    if (!factors.ok()) return std::nullopt;
    std::vector<NodePlan> plans;
    for (ir::NodeId id = 0; id < result_.num_nodes(); ++id) {
      const Wanted& wanted = wanted_[id];
      if (wanted.old != ir::kNoNode) {
        plans.push_back(plans_[wanted.old]);
        continue;
      }
      std::optional<NodePlan> plan = PlanAsWanted(id, (*factors)[id]);
      if (!plan) return std::nullopt;
      plans.push_back(*std::move(plan));
    }
    return Joined{std::move(result_), *std::move(factors), std::move(plans)};
  }

  std::optional<NodePlan> PlanAsWanted(ir::NodeId id, const propagate::NodeFactors& nf) const {
    const Wanted& wanted = wanted_[id];
    const ir::Node& node = result_.node(id);
    const Grid& grid = result_.grid(wanted.grid);
    if (!wanted.result) return std::nullopt;
    Choice choice;
    choice.cut.resize(nf->factors.size());
    const auto add = [&](const rules::TensorFactors& tensor, const Dims& dims, const Sharding& s) {
      const propagate::Cut cut = propagate::CutOf(*nf, tensor, dims, s, grid);
      for (size_t f = 0; f < cut.size(); ++f) {
        if (choice.cut[f].axes.empty()) choice.cut[f] = cut[f];
      }
    };
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (node.operands[k] == ir::kNoValue) continue;
      add(nf->operands[k], result_.type(node.operands[k]).dims, wanted.operands[k]);
    }
    add(nf->results[0], result_.type(node.first_result).dims, *wanted.result);
    std::optional<NodePlan> plan = PlanNode(result_, node, nf, std::move(choice), wanted.grid);
    if (!plan || !(plan->results[0] == *wanted.result)) return std::nullopt;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (node.operands[k] != ir::kNoValue && !(plan->operands[k] == wanted.operands[k])) {
        return std::nullopt;
      }
    }
    return plan;
  }

  const ir::Graph& graph_;
  const std::vector<propagate::NodeFactors>& factors_;
  const std::vector<NodePlan>& plans_;
  const std::vector<std::vector<ir::NodeId>> users_;
  ir::Graph result_;
  std::vector<Wanted> wanted_;      // by node of the result
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
