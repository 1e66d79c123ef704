// SPDX-License-Identifier: Apache-2.0
// Ops that divide a dimension into blocks or join blocks, as the result of a fused projection
// needs. If a dimension is n blocks of k, each of which is sharded, these ops work on whole blocks
// and move nothing.
//
//   x: f32[8,192]   slice(dim=1, start=64, end=128)   the second of three blocks of 64
#pragma once

#include <optional>

#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/op_facts.h"

namespace spmd::partition {

struct BlockOp {
  rules::BlockUse use;
  int dim;
  int64_t start = 0, end = 0;  // unused by kJoin
};
// nullopt if the op does nothing with blocks, or has a step other than 1.
std::optional<BlockOp> BlockOpOf(const ir::Graph& graph, const ir::Node& node);

// The node on operands in which dimension `dim` has become two: the blocks of `size`, and the
// indices within a block.
ir::ValueId CallOnBlocks(rules::Builder& builder, const ir::Node& node, const BlockOp& op,
                         int64_t size, std::vector<ir::ValueId> operands);

}  // namespace spmd::partition
