// SPDX-License-Identifier: Apache-2.0
// Calls that come again. A call is noted when it is recorded event by event, and replayed in one
// step when the tape follows a recording and the same op comes with equal arguments at the same
// place.
//
// A call is determined by the op, its arguments, the metadata of its tensors and what their Buffers
// hold, the default dtype and the graph task. A call that agrees in all of this has the same
// results, so nothing is inferred, hashed or converted.
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/stack.h>

#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "csrc/trace/tape/recording.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

class Tape;
struct SessionState;

using CallResults = absl::InlinedVector<c10::IValue, 2>;
// Where the results of a call go. At most one member is set: `list` for results of any kind, `each`
// for a fixed number of tensors, `tensors` for a single list of tensors; none for an op that
// returns what it wrote.
struct ResultsTo {
  CallResults* list = nullptr;
  absl::Span<at::Tensor> each = {};
  std::vector<at::Tensor>* tensors = nullptr;
};
// The arguments of a call in schema order. A list of integers or tensors may be given as lists[i],
// since a list is costly to make as a value; values[i] is then None. `lists` is empty or as long as
// `values`.
using BorrowedList = std::variant<std::monostate, at::IntArrayRef, at::TensorList>;
struct CallArguments {
  absl::Span<const c10::IValue> values;
  absl::Span<const BorrowedList> lists = {};
  // Null unless argument `i` is such a list.
  const at::IntArrayRef* ints(size_t i) const {
    return lists.empty() ? nullptr : std::get_if<at::IntArrayRef>(&lists[i]);
  }
  const at::TensorList* tensors(size_t i) const {
    return lists.empty() ? nullptr : std::get_if<at::TensorList>(&lists[i]);
  }
};
// True if the call was replayed.
bool Replay(SessionState& state, const OpInfo& op, const CallArguments& args, ResultsTo results);

// Makes a result of a call that has its own memory. Requires: the tape has the result's value.
at::Tensor MakeFresh(Tape& tape, const CallResult& result);

// The value of a Python number that takes the place of a tensor.
c10::Scalar NumberIn(const at::Tensor& wrapped);

}  // namespace spmd::trace
