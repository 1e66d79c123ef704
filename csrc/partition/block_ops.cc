// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/block_ops.h"

#include <algorithm>
#include <utility>

#include "csrc/rules/op_call.h"

namespace spmd::partition {
namespace {

struct Row {
  absl::string_view op;
  BlockOp::Kind kind;
};
constexpr Row kRows[] = {
    {"aten::slice.Tensor", BlockOp::Kind::kTake},
    {"aten::slice_backward", BlockOp::Kind::kPlace},
    {"aten::slice_scatter", BlockOp::Kind::kPut},
    {"aten::cat", BlockOp::Kind::kJoin},
};

const Row* RowOf(const ir::Node& node) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.op == node.op; });
  return row == std::end(kRows) ? nullptr : row;
}

}  // namespace

std::optional<BlockOp> BlockOpOf(const ir::Graph& graph, const ir::Node& node) {
  const Row* const row = RowOf(node);
  if (row == nullptr) return std::nullopt;
  const TensorType& result = graph.type(node.first_result);
  BlockOp op{row->kind, static_cast<int>(rules::OpCall::Of(graph, node).Dim("dim", result.rank()))};
  if (row->kind == BlockOp::Kind::kJoin) return op;
  if (node.attributes.GetIntOr("step", 1) != 1) return std::nullopt;
  const TensorType& full =
      row->kind == BlockOp::Kind::kTake ? graph.type(node.operands[0]) : result;
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
  if (op.kind != BlockOp::Kind::kJoin) {
    attributes.Set("start", op.start / size);
    attributes.Set("end", op.end / size);
  }
  if (op.kind == BlockOp::Kind::kPlace) {
    std::vector<int64_t> sizes = node.attributes.GetInts("input_sizes");
    sizes[op.dim] /= size;
    sizes.insert(sizes.begin() + op.dim + 1, size);
    attributes.Set("input_sizes", std::move(sizes));
  }
  return builder.CallAll(node.op, std::move(operands), std::move(attributes),
                         {node.groups.begin(), node.groups.end()})[0];
}

}  // namespace spmd::partition
