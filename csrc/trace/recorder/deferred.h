// SPDX-License-Identifier: Apache-2.0
// A value that no program has returned as it is. A program has returned others, from which it is
// computed where it is read: rows that a list took out of a sharded dimension leave a program once
// for each block (csrc/partition/own_rows.h), and are brought together by
//
//   spmd::rows_together(rows, list)
//
// which is recorded on each tape that reads them. There the compiler sees what they are.
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/tape/tape.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct SessionState;

// Each step is one op with one result. Its operands are numbers of `from`, and after them of the
// results of the steps before.
struct Deferred {
  struct Step {
    const OpInfo* op = nullptr;
    std::vector<c10::IValue> args;
    std::vector<int> operands;
    TensorType result;
  };
  std::vector<ValuePtr> from;
  std::vector<Step> steps;
};

// The number of a deferred value on the tape; its steps are recorded if they are not there yet.
// Throws: the failure by which a value of `from` is lost.
TapeId UseDeferred(SessionState& state, Value& value);
// A deferred value that `buffer` holds becomes a pending one, whose steps are recorded.
void RecordDeferred(SessionState& state, Buffer* buffer);

// How a list follows from a value that the tape's program takes or returns as it is: by records
// with that one operand, in order.
struct ListName {
  TapeId base = kNoId;
  std::vector<int> records;
};
// Nullopt if `list` does not follow so from an input or one of `outputs` that no mark binds.
std::optional<ListName> NameOfList(const Tape& tape, absl::Span<const OutputSpec> outputs,
                                   TapeId list);

// The lists by which the needed records of the tape read rows, if rows are also written by a list.
// Each has a name.
std::vector<TapeId> ListsOfRows(const Tape& tape, absl::Span<const OutputSpec> outputs);

// What stands for `output` of the tape's program, which returns `rows` for it.
std::shared_ptr<const Deferred> DeferredRows(const Tape& tape, absl::Span<const OutputSpec> outputs,
                                             const OutputSpec& output, ValuePtr rows);

}  // namespace spmd::trace
