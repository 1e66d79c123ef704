// SPDX-License-Identifier: Apache-2.0
// Starts are numbers of elements by which an op moves: where a slice begins, which row a select
// takes, how far a roll shifts, at which diagonal a triangle ends. The compiler makes better
// programs if it knows them (a slice for which no shard needs another one), so it knows them at
// first. If two tapes are equal except for some starts, the program of the second one takes these
// at run time (csrc/trace/program/lower_starts.h); so a loop compiles twice. Which arguments they
// are is in csrc/trace/op/number_arguments.h.
//
//   data[i * b : (i + 1) * b]      cache[:, position]      x.roll(i, 0)      scores.tril(i)
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <string>
#include <vector>

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
// How far a roll by `shift` moves the indices of a dimension of `size` at most, which a program
// knows that takes the shift at run time: 0, ± size/16, ± size/256, … where 16 divides these, or
// `size` if it is farther.
int64_t ReachOf(int64_t shift, int64_t size);
// True if a program that takes the record's starts `a` at run time takes `b`, too. `operand`: the
// type of the record's first operand.
bool HaveSameReach(const Record& record, const TensorType& operand,
                   const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b);
// The record's starts as text: "shifts of aten::roll".
std::string StartToString(const Record& record);
// Appends the starts of a record whose arguments are now `args`, in the order of their slots.
void AppendStarts(const Record& record, const std::vector<c10::IValue>& args,
                  std::vector<c10::Scalar>& scalars);

}  // namespace spmd::trace
