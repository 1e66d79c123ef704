// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/block_ops.h"

#include <algorithm>
#include <utility>

#include "csrc/rules/op_call.h"
#include "csrc/rules/registry.h"

namespace spmd::partition {

using rules::BlockUse;
std::optional<BlockOp> BlockOpOf(const ir::Graph& graph, const ir::Node& node) {
  const BlockUse use = rules::FactsOf(node.op).blocks;
  if (use == BlockUse::kNone) return std::nullopt;
  const TensorType& result = graph.type(node.first_result);
  BlockOp op{use, static_cast<int>(rules::OpCall::Of(graph, node).Dim("dim", result.rank()))};
  if (use == BlockUse::kJoin) return op;
  if (node.attributes.GetIntOr("step", 1) != 1) return std::nullopt;
  const TensorType& full = use == BlockUse::kTake ? graph.type(node.operands[0]) : result;
  const int64_t extent = full.dims[op.dim];
  const auto bound = [&](absl::string_view name, int64_t fallback) {
    const int64_t i = node.attributes.GetIntOr(name, fallback);
    return std::clamp<int64_t>(i < 0 ? i + extent : i, 0, extent);
  };
  op.start = bound("start", 0);
  op.end = std::max(op.start, bound("end", extent));
  return op;
}

ir::ValueId CallOnBlocks(rules::Builder& builder, const ir::Node& node, const BlockOp& op,
                         int64_t size, std::vector<ir::ValueId> operands) {
  Attributes attributes = node.attributes;
  attributes.Set("dim", int64_t{op.dim});
  if (op.use != BlockUse::kJoin) {
    attributes.Set("start", op.start / size);
    attributes.Set("end", op.end / size);
  }
  if (op.use == BlockUse::kPlace) {
    std::vector<int64_t> sizes = node.attributes.GetInts("input_sizes");
    sizes[op.dim] /= size;
    sizes.insert(sizes.begin() + op.dim + 1, size);
    attributes.Set("input_sizes", std::move(sizes));
  }
  return builder.CallAll(node.op, std::move(operands), std::move(attributes),
                         {node.groups.begin(), node.groups.end()})[0];
}

}  // namespace spmd::partition
