// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/decisions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/ir/lines.h"
#include "csrc/rules/op_call.h"
#include "csrc/sharding/layout.h"
#include "csrc/util/scanner.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

template <typename List>
std::string Numbers(const List& list) {
  return absl::StrJoin(list, ",", [](std::string* out, auto item) {
    absl::StrAppend(out, static_cast<int64_t>(item));
  });
}

std::string NodeLine(const NodeDecision& node) {
  std::string line = absl::StrCat("node @", node.grid);
  for (const auto& [factor, shard] : node.cut) {
    absl::StrAppend(&line, " ", factor, ":", Numbers(shard.axes));
    if (shard.chunk != 0) absl::StrAppend(&line, "/", shard.chunk);
  }
  if (node.through.empty()) return line;
  return absl::StrCat(line, " through ", node.through_operand, " ",
                      ReduceKindName(node.through_kind), " ", Numbers(node.through));
}

// Like Sharding::ToString, with numbers for axes.
std::string ValueLine(const ValueDecision& value) {
  std::string line = absl::StrCat("value ", value.value, " @", value.grid);
  for (int d = 0; d < value.sharding.rank(); ++d) {
    const DimSharding& dim = value.sharding.dims[d];
    absl::StrAppend(&line, d == 0 ? " {" : ",{", Numbers(dim.axes));
    if (dim.chunk != 0) absl::StrAppend(&line, "/", dim.chunk);
    absl::StrAppend(&line, "}");
  }
  return line;
}

class Parser {
 public:
  absl::StatusOr<Decisions> Parse(absl::string_view text) {
    for (const ir::Line& line : ir::SplitLines(text)) {
      Scanner in(line.text);
      absl::Status status = Statement(in);
      if (status.ok()) status = in.ExpectEnd();
      if (!status.ok()) return status;
    }
    return std::move(decisions_);
  }

 private:
  absl::Status Statement(Scanner& in) {
    if (in.ConsumeWord("decomposed")) return Decomposed(in);
    if (in.ConsumeWord("reordered")) {
      decisions_.decomposed.emplace_back();
      return absl::OkStatus();
    }
    if (in.ConsumeWord("owned")) {
      decisions_.decomposed.push_back({ir::kNoNode});
      return absl::OkStatus();
    }
    if (in.ConsumeWord("rings")) {
      decisions_.decomposed.push_back({Decisions::kRings});
      return absl::OkStatus();
    }
    if (in.ConsumeWord("value")) return Value(in);
    if (in.ConsumeWord("node")) return Node(in);
    return in.Error("'decomposed', 'reordered', 'owned', 'rings', 'value' or 'node'");
  }

  // An integer in [low, 2^31).
  absl::StatusOr<int> Int(Scanner& in, int low) {
    constexpr int64_t kHigh = int64_t{1} << 31;
    SPMD_ASSIGN_OR_RETURN(const int64_t value, in.Integer("a number"));
    if (value >= low && value < kHigh) return static_cast<int>(value);
    return absl::InvalidArgumentError(absl::StrCat(value, " is out of range"));
  }

  absl::StatusOr<AxisList> Axes(Scanner& in) {
    AxisList axes;
    do {
      SPMD_ASSIGN_OR_RETURN(const int axis, Int(in, 0));
      if (axis > 127) return absl::InvalidArgumentError("there is no such axis");
      axes.push_back(static_cast<AxisId>(axis));
    } while (in.Consume(","));
    return axes;
  }

  absl::StatusOr<int64_t> Chunk(Scanner& in) {
    if (!in.Consume("/")) return 0;
    return in.Integer("the size of a chunk");
  }

  absl::StatusOr<ReduceKind> Kind(Scanner& in) {
    SPMD_ASSIGN_OR_RETURN(const absl::string_view name, in.Identifier("a kind of reduction"));
    return ParseReduceKind(name);
  }

  absl::StatusOr<int> GridNumber(Scanner& in) {
    SPMD_RETURN_IF_ERROR(in.Expect("@"));
    return Int(in, 0);
  }

  absl::Status Decomposed(Scanner& in) {
    std::vector<ir::NodeId>& round = decisions_.decomposed.emplace_back();
    do {
      SPMD_ASSIGN_OR_RETURN(const int id, Int(in, 0));
      round.push_back(id);
    } while (in.Consume(","));
    return absl::OkStatus();
  }

  absl::Status Value(Scanner& in) {
    ValueDecision& value = decisions_.values.emplace_back();
    SPMD_ASSIGN_OR_RETURN(value.value, Int(in, 0));
    SPMD_ASSIGN_OR_RETURN(value.grid, GridNumber(in));
    if (in.AtEnd()) return absl::OkStatus();
    do {
      DimSharding& dim = value.sharding.dims.emplace_back();
      SPMD_RETURN_IF_ERROR(in.Expect("{"));
      if (in.Consume("}")) continue;
      SPMD_ASSIGN_OR_RETURN(dim.axes, Axes(in));
      SPMD_ASSIGN_OR_RETURN(dim.chunk, Chunk(in));
      SPMD_RETURN_IF_ERROR(in.Expect("}"));
    } while (in.Consume(","));
    return absl::OkStatus();
  }

  absl::Status Node(Scanner& in) {
    NodeDecision& node = decisions_.nodes.emplace_back();
    SPMD_ASSIGN_OR_RETURN(node.grid, GridNumber(in));
    while (!in.AtEnd() && !in.Looking("through")) {
      auto& [factor, shard] = node.cut.emplace_back();
      SPMD_ASSIGN_OR_RETURN(factor, Int(in, 0));
      SPMD_RETURN_IF_ERROR(in.Expect(":"));
      SPMD_ASSIGN_OR_RETURN(shard.axes, Axes(in));
      SPMD_ASSIGN_OR_RETURN(shard.chunk, Chunk(in));
    }
    if (!in.ConsumeWord("through")) return absl::OkStatus();
    SPMD_ASSIGN_OR_RETURN(node.through_operand, Int(in, Choice::kJointly));
    SPMD_ASSIGN_OR_RETURN(node.through_kind, Kind(in));
    SPMD_ASSIGN_OR_RETURN(node.through, Axes(in));
    return absl::OkStatus();
  }

  Decisions decisions_;
};

absl::Status Impossible(const ir::Node& node, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a decision about ", node.op, ": ", what));
}

bool AreAxes(const Grid& grid, const AxisList& axes, AxisMask& used) {
  for (const AxisId axis : axes) {
    if (axis < 0 || axis >= grid.num_axes() || (used & MaskOf(axis))) return false;
    used |= MaskOf(axis);
  }
  return !axes.empty();
}

// Whether `shards` shards of `chunk` indices cover `size`; the last one has the rest, at most two
// chunks.
bool Covers(int64_t chunk, int64_t size, int64_t shards) {
  return chunk == 0 ||
         (chunk > 0 && chunk <= std::max<int64_t>(size, 1) && chunk >= CeilDiv(size, shards + 1));
}

absl::Status CheckThrough(const ir::Graph& graph, const ir::Node& node,
                          const propagate::NodeFactors& nf, const Choice& choice) {
  if (nf.rule == nullptr)
    return Impossible(node, "it has no rule, so no partial sums pass through it");
  const rules::Linearity linear =
      rules::LinearityOf(*nf.rule, rules::OpCall::Of(graph, node), choice.through_kind);
  const auto& each = linear.each;
  const bool is_linear =
      choice.through_operand == Choice::kJointly
          ? !linear.jointly.empty()
          : std::find(each.begin(), each.end(), choice.through_operand) != each.end();
  return is_linear ? absl::OkStatus() : Impossible(node, "it is not linear in that operand");
}

bool IsOpen(const ir::Value& value) {
  if (!value.annotation || value.annotation->hold == ir::Hold::kDerived) return false;
  const auto& dims = value.annotation->sharding.dims;
  return std::any_of(dims.begin(), dims.end(), [](const DimSharding& dim) { return dim.open; });
}

// By value: whether lowering reads its proposal. Open dimensions of an annotation have the axes
// that propagation has brought there.
std::vector<bool> AskedFor(const ir::Graph& graph) {
  std::vector<bool> asked(graph.num_values(), false);
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) asked[v] = IsOpen(graph.value(v));
  for (const ir::ValueId v : graph.inputs()) asked[v] = true;
  for (const ir::Output& output : graph.outputs()) {
    if (output.becomes == ir::kNoValue) asked[output.value] = true;
  }
  return asked;
}

bool IsProposal(const ir::Value& value) {
  return !value.annotation || value.annotation->hold == ir::Hold::kDerived || IsOpen(value);
}

// Gives the open dimensions of `annotation` the axes of `proposed`, which begin with its own.
absl::Status Fill(const ValueDecision& proposed, ir::Annotation& annotation) {
  auto& dims = annotation.sharding.dims;
  bool fits = proposed.grid == annotation.grid && proposed.sharding.dims.size() == dims.size();
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    const DimSharding& dim = proposed.sharding.dims[d];
    const bool begins = dim.axes.size() >= dims[d].axes.size() &&
                        std::equal(dims[d].axes.begin(), dims[d].axes.end(), dim.axes.begin());
    fits = dims[d].open ? begins : dim.axes == dims[d].axes && dim.chunk == dims[d].chunk;
    if (!dims[d].open) continue;
    dims[d].axes = dim.axes;
    dims[d].chunk = dim.chunk;
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError("a proposal that is not what the user asked for");
}

}  // namespace

std::string Decisions::ToString() const {
  std::string text;
  for (const auto& round : decomposed) {
    if (round.empty()) {
      absl::StrAppend(&text, "reordered\n");
    } else if (round.front() == ir::kNoNode) {
      absl::StrAppend(&text, "owned\n");
    } else if (round.front() == Decisions::kRings) {
      absl::StrAppend(&text, "rings\n");
    } else {
      absl::StrAppend(&text, "decomposed ", Numbers(round), "\n");
    }
  }
  for (const ValueDecision& value : values) absl::StrAppend(&text, ValueLine(value), "\n");
  for (const NodeDecision& node : nodes) absl::StrAppend(&text, NodeLine(node), "\n");
  return text;
}

absl::StatusOr<Decisions> Decisions::Parse(absl::string_view text) { return Parser().Parse(text); }

NodeDecision DecisionOf(const NodePlan& plan) {
  NodeDecision decision;
  decision.grid = plan.grid;
  for (size_t f = 0; f < plan.choice.cut.size(); ++f) {
    if (plan.choice.cut[f].axes.empty()) continue;
    decision.cut.emplace_back(static_cast<int>(f), plan.choice.cut[f]);
  }
  if (plan.choice.through.empty()) return decision;
  decision.through = plan.choice.through;
  decision.through_kind = plan.choice.through_kind;
  decision.through_operand = plan.choice.through_operand;
  return decision;
}

absl::StatusOr<NodePlan> PlanOf(const ir::Graph& graph, ir::NodeId id,
                                const propagate::NodeFactors& factors,
                                const NodeDecision& decision) {
  const ir::Node& node = graph.node(id);
  if (decision.grid >= static_cast<int>(graph.grids().size())) {
    return Impossible(node, "there is no such grid");
  }
  const Grid& grid = graph.grid(decision.grid);
  Choice choice;
  choice.cut.resize(factors->factors.size());
  AxisMask used = 0;
  int last = -1;
  for (const auto& [factor, shard] : decision.cut) {
    if (factor <= last || factor >= static_cast<int>(choice.cut.size())) {
      return Impossible(node, "there is no such factor");
    }
    if (!AreAxes(grid, shard.axes, used)) return Impossible(node, "axes that it cannot use");
    if (!Covers(shard.chunk, factors->factors[factor].size, grid.size(shard.axes))) {
      return Impossible(node, "a chunk that does not cover the factor");
    }
    choice.cut[factor] = shard;
    last = factor;
  }
  if (!decision.through.empty()) {
    if (!AreAxes(grid, decision.through, used)) return Impossible(node, "axes that it cannot use");
    choice.through = decision.through;
    choice.through_kind = decision.through_kind;
    choice.through_operand = decision.through_operand;
    SPMD_RETURN_IF_ERROR(CheckThrough(graph, node, factors, choice));
  }
  std::optional<NodePlan> plan = PlanNode(graph, node, factors, std::move(choice), decision.grid);
  if (!plan.has_value()) return Impossible(node, "it cannot be sharded so");
  for (size_t k = 0; k < node.operands.size(); ++k) {
    if (node.operands[k] == ir::kNoValue) continue;
    SPMD_RETURN_IF_ERROR(CheckLayout(grid, plan->operands[k], graph.type(node.operands[k]).dims));
  }
  for (int r = 0; r < node.num_results; ++r) {
    SPMD_RETURN_IF_ERROR(CheckLayout(grid, plan->results[r], graph.type(graph.result(id, r)).dims));
  }
  return *std::move(plan);
}

std::vector<ValueDecision> ProposalsOf(const ir::Graph& graph) {
  const std::vector<bool> asked = AskedFor(graph);
  std::vector<ValueDecision> proposals;
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    if (!asked[v] || !IsProposal(graph.value(v))) continue;
    const ir::Annotation& annotation = *graph.value(v).annotation;
    proposals.push_back({v, annotation.grid, annotation.sharding.Closed().Reduced()});
  }
  return proposals;
}

absl::Status Propose(const std::vector<ValueDecision>& proposals, ir::Graph& graph) {
  const std::vector<bool> asked = AskedFor(graph);
  auto next = proposals.begin();
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    if (!IsProposal(graph.value(v))) continue;
    const TensorType& type = graph.type(v);
    ir::Annotation annotation{0, Sharding::Replicated(type.rank()), ir::Hold::kDerived};
    if (asked[v]) {
      const int grids = static_cast<int>(graph.grids().size());
      if (next == proposals.end() || next->value != v || next->grid >= grids) {
        return absl::InvalidArgumentError("a value has no proposal");
      }
      if (IsOpen(graph.value(v))) {
        annotation = *graph.value(v).annotation;
        SPMD_RETURN_IF_ERROR(Fill(*next, annotation));
      } else {
        annotation.grid = next->grid;
        annotation.sharding = next->sharding;
      }
      SPMD_RETURN_IF_ERROR(
          CheckLayout(graph.grid(annotation.grid), annotation.sharding, type.dims));
      ++next;
    }
    graph.Annotate(v, std::move(annotation));
  }
  if (next == proposals.end()) return absl::OkStatus();
  return absl::InvalidArgumentError("a proposal of a value that needs none");
}

}  // namespace spmd::partition
