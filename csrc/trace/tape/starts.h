// SPDX-License-Identifier: Apache-2.0
// Starts are numbers of elements by which an op moves: where a slice begins, which row a select
// takes, how far a roll shifts, at which diagonal a triangle ends. The compiler makes better
// programs if it knows them (a slice for which no shard needs another one), so it knows them at
// first. If two tapes are equal except for some starts, the program of the second one takes these
// at run time; so a loop compiles twice.
//
//   data[i * b : (i + 1) * b]      cache[:, position]      x.roll(i, 0)      scores.tril(i)
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/ir/graph.h"
#include "csrc/trace/tape/record.h"

namespace spmd::trace {

// Bit i is set if argument i of the record is a start, or an end that follows from a start and the
// length.
uint64_t StartArguments(const Record& record);
// The numbers of the records that have starts, ascending.
std::vector<int> RecordsWithStarts(const std::vector<Record>& records);
// True if the record's starts are equal in the arguments `a` and `b`.
bool SameStarts(const Record& record, const std::vector<c10::IValue>& a,
                const std::vector<c10::IValue>& b);
// The record's starts as text: "shifts of aten::roll".
std::string StartToString(const Record& record);
// Appends the starts of a record whose arguments are now `args`, in the order of their slots.
void AppendStarts(const Record& record, const std::vector<c10::IValue>& args,
                  std::vector<c10::Scalar>& scalars);

// Lowers the record to ops that take its starts at run time, in slots that are added to the graph.
// `operands` are values of the graph, `like` gives the task and source, and `result` is the type of
// the result.
// Requires: StartArguments(record) is not 0.
ir::ValueId LowerStarts(ir::Graph& graph, const Record& record,
                        const std::vector<ir::ValueId>& operands, const ir::Graph::NodeSpec& like,
                        const TensorType& result);

}  // namespace spmd::trace
