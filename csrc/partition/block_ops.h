// SPDX-License-Identifier: Apache-2.0
// Ops that take a dimension apart into blocks or put blocks together: what a fused projection's
// result goes through. Where a dimension is n blocks of k, each of which is cut, they work on whole
// blocks, and move nothing.
//
//   x: f32[8,192]   slice(dim=1, start=64, end=128)   the second of three blocks of 64
#pragma once

#include <optional>

#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

struct BlockOp {
  enum class Kind : uint8_t {
    kTake,   // indices [start, end) of operand 0
    kPlace,  // operand 0 at [start, end), zeros elsewhere
    kPut,    // operand 1 at [start, end) of operand 0
    kJoin,   // all operands, one after another
  };
  Kind kind;
  int dim;
  int64_t start = 0, end = 0;  // of all but kJoin
};
// nullopt where the node is none, or steps over indices.
std::optional<BlockOp> BlockOpOf(const ir::Graph& graph, const ir::Node& node);

// The node over operands of which dimension `dim` is two: blocks of `size`, and their indices.
ir::ValueId CallOnBlocks(rules::Builder& builder, const ir::Node& node, const BlockOp& op,
                         int64_t size, std::vector<ir::ValueId> operands);

}  // namespace spmd::partition
