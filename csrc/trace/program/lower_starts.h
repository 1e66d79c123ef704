// SPDX-License-Identifier: Apache-2.0
// Ops whose starts (csrc/trace/tape/starts.h) a program takes at run time.
//
//   aten::select.int(%cache, dim=1, index=7)
// becomes, for every index,
//   %1: f32[8,1,64] = spmd::slice_start(%cache, dim=1, start=$0, length=1)
//   %2: f32[8,64] = aten::view(%1, size=[8,64])
#pragma once

#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/trace/tape/record.h"

namespace spmd::trace {

// Lowers the record to ops that take its starts at run time, in slots that are added to the graph.
// `operands` are values of the graph, `like` gives the task and source, and `result` is the type of
// the result.
// Requires: StartArguments(record) is not 0.
ir::ValueId LowerStarts(ir::Graph& graph, const Record& record,
                        const std::vector<ir::ValueId>& operands, const ir::Graph::NodeSpec& like,
                        const TensorType& result);

}  // namespace spmd::trace
