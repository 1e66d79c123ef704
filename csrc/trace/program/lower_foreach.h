// SPDX-License-Identifier: Apache-2.0
// Lowers foreach ops, which are ops on lists, to independent element-wise ops.
#pragma once

#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/trace/tape/record.h"

namespace spmd::trace {

// The op that a foreach op applies to each tensor, or null: "aten::_foreach_add.List" →
// "aten::add.Tensor".
const OpInfo* ElementOp(const OpInfo& foreach_op);
// Element `k` of the `count` elements of a foreach record, as the arguments of its element op.
struct ElementCall {
  std::vector<TapeId> operands;
  Attributes attributes;
};
ElementCall ElementOf(const Record& record, const OpInfo& element, int k, int count);

}  // namespace spmd::trace
