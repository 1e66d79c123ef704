// SPDX-License-Identifier: Apache-2.0
// Numbers of elements by which an op moves: where a slice starts, which row a select takes, how far
// a roll shifts, which diagonal a triangle ends at. Known, they make better programs (a slice that
// no shard has to ask others for), so the compiler knows them at first. Of two tapes that are equal
// but for some of them, the second one's program takes these when it runs; a loop compiles twice.
//
//   data[i * b : (i + 1) * b]      cache[:, position]      x.roll(i, 0)      scores.tril(i)
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/trace/record.h"

namespace spmd::trace {

// Bit i: argument i of the record is such a number, or an end that follows from it and the length.
uint64_t StartArguments(const Record& record);
// Numbers of the records that have some, ascending.
std::vector<int> RecordsWithStarts(const std::vector<Record>& records);
// True when the record's numbers are the same among `a` and `b`.
bool SameStarts(const Record& record, const std::vector<c10::IValue>& a,
                const std::vector<c10::IValue>& b);
// "shifts of aten::roll"
std::string StartToString(const Record& record);
// The numbers of a record whose arguments are now `args`, in the order of their slots.
void AppendStarts(const Record& record, const std::vector<c10::IValue>& args,
                  std::vector<c10::Scalar>& scalars);

// The record in ops that take its numbers when they run, in slots that are added to the graph.
// `operands`: in the graph. `like`: task and source. `result`: its type.
// Requires: StartArguments(record) is not 0.
ir::ValueId LowerStarts(ir::Graph& graph, const Record& record,
                        const std::vector<ir::ValueId>& operands, const ir::Graph::NodeSpec& like,
                        const TensorType& result);

}  // namespace spmd::trace
