// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/batch_index.h"

#include <algorithm>
#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

bool IsIndexType(DType type) { return type == DType::kI64 || type == DType::kI32; }

bool IsNumber(const Attributes& attributes, absl::string_view name, int64_t value) {
  const Attr* attr = attributes.Find(name);
  if (attr == nullptr) return false;
  const auto* number = std::get_if<int64_t>(attr);
  return number != nullptr && *number == value;
}

// True if the op only moves the elements of its one operand: each occurs in the result, and no
// other.
bool OnlyMoves(const ir::Graph& graph, const ir::Node& node, const Rule& rule) {
  if (node.operands.size() != 1 || node.num_results != 1) return false;
  if (rule.facts.converts) {
    return IsIndexType(graph.type(node.operands[0]).dtype) &&
           IsIndexType(graph.type(node.first_result).dtype);
  }
  return rule.flops_per_point == 0 && rule.monotone && rule.jointly == std::vector<int>{0};
}

// The dimension of the result that is all of the operand's dimension `dim`, or -1.
int WhereDimGoes(const OpFactors& factors, const TensorType& operand, int dim) {
  const DimFactors& from = factors.operands[0][dim];
  if (from.size() != 1 || factors.factors[from[0]].size != operand.dims[dim]) return -1;
  for (size_t d = 0; d < factors.results[0].size(); ++d) {
    if (factors.results[0][d] == from) return static_cast<int>(d);
  }
  return -1;
}

// By dimension of self: the broadcast dimension that enumerates it, or -1, and how many indices
// that has.
struct Batch {
  std::vector<int64_t> dim;
  std::vector<int64_t> count;
};

std::optional<Batch> BatchOf(const ir::Graph& graph, Operands operands, int num_indices) {
  const TensorType& self = graph.type(operands[0]);
  Batch batch;
  batch.dim.assign(self.rank(), -1);
  batch.count.assign(self.dims.begin(), self.dims.end());
  int rank = 0;
  for (int k = 1; k <= num_indices; ++k) {
    if (operands[k] == ir::kNoValue) continue;
    const TensorType& index = graph.type(operands[k]);
    if (!IsIndexType(index.dtype)) return std::nullopt;  // a mask
    rank = std::max(rank, index.rank());
  }
  std::vector<bool> taken(rank, false);
  bool any = false;
  for (int k = 1; k <= num_indices; ++k) {
    if (operands[k] == ir::kNoValue) continue;
    const std::optional<Numbering> numbering = NumberingOf(graph, operands[k]);
    const int d = k - 1;
    if (!numbering || numbering->count > self.dims[d] || numbering->count < 2) continue;
    const int at = rank - graph.type(operands[k]).rank() + numbering->dim;
    if (taken[at]) continue;  // two indices enumerate one broadcast dimension: a diagonal
    taken[at] = any = true;
    batch.dim[d] = at;
    batch.count[d] = numbering->count;
  }
  if (!any) return std::nullopt;
  return batch;
}

Attributes PartAttributes(const TensorType& self, const Batch& batch) {
  return {{"first", std::vector<int64_t>(self.rank(), 0)},
          {"size", std::vector<int64_t>(self.dims.begin(), self.dims.end())},
          {"may_be_negative", true},
          {"batch", batch.dim}};
}

// The part of `self` that the indices enumerate.
ir::ValueId Numbered(Builder& b, ir::ValueId self, const Batch& batch) {
  for (int d = 0; d < b.rank(self); ++d) {
    if (batch.count[d] != b.type(self).dims[d]) self = b.Slice(self, d, 0, batch.count[d]);
  }
  return self;
}

}  // namespace

std::optional<Numbering> NumberingOf(const ir::Graph& graph, ir::ValueId v) {
  const ir::NodeId producer = graph.value(v).producer;
  if (producer == ir::kNoNode) return std::nullopt;
  const ir::Node& node = graph.node(producer);
  if (FactsOf(node.op).enumerates) {
    const bool from_zero = IsNumber(node.attributes, "start", 0) &&
                           IsNumber(node.attributes, "step", 1) &&
                           IsNumber(node.attributes, "offset", 0);
    if (!from_zero || !IsIndexType(graph.type(v).dtype)) return std::nullopt;
    return Numbering{0, graph.type(v).dims[0]};
  }
  const Rule* rule = Find(node.op);
  if (rule == nullptr || !OnlyMoves(graph, node, *rule)) return std::nullopt;
  const ir::ValueId operand = node.operands[0];
  std::optional<Numbering> numbering = NumberingOf(graph, operand);
  if (!numbering) return std::nullopt;
  const auto factors = FactorsOf(*rule, OpCall::Of(graph, node));
  if (!factors.ok()) return std::nullopt;
  const int dim = WhereDimGoes(*factors, graph.type(operand), numbering->dim);
  if (dim < 0) return std::nullopt;
  return Numbering{dim, numbering->count};
}

ValuesOrStatus IndexByBatch(Builder& b, const ir::Graph&, const ir::Node&, Operands operands) {
  const int num_indices = static_cast<int>(operands.size()) - 1;
  const std::optional<Batch> batch = BatchOf(b.graph(), operands, num_indices);
  if (!batch) return Values{};
  Values call(operands.begin(), operands.end());
  call[0] = Numbered(b, call[0], *batch);
  return b.CallAll("spmd::index_part", std::move(call), PartAttributes(b.type(call[0]), *batch),
                   {{1, num_indices}});
}

ValuesOrStatus IndexPutByBatch(Builder& b, const ir::Graph&, const ir::Node& node,
                               Operands operands) {
  const int num_indices = static_cast<int>(operands.size()) - 2;
  const std::optional<Batch> batch = BatchOf(b.graph(), operands, num_indices);
  if (!batch) return Values{};
  const ir::ValueId self = operands[0], numbered = Numbered(b, self, *batch);
  // The rest of self would have to be put back around the result.
  if (numbered != self) return Values{};
  Attributes attributes = PartAttributes(b.type(self), *batch);
  attributes.Set("accumulate", node.attributes.GetBoolOr("accumulate", false));
  return b.CallAll("spmd::index_put_part", Values(operands.begin(), operands.end()),
                   std::move(attributes), {{1, num_indices}});
}

}  // namespace spmd::rules
