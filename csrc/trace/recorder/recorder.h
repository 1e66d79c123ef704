// SPDX-License-Identifier: Apache-2.0
// What is recorded: the values of tensors are read as numbers of the tape, ops on numbers are
// appended, and results are written to tensors.
//
//   TapeId x = Read(state, tensor);
//   TapeId y = EmitNamed(state, "aten::relu", {x}, {}, TypeOf(state, x));
//   Write(state, tensor, y);
//
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/types/span.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/tape/record.h"

namespace spmd::trace {

struct SessionState;

// --- read and write ---
// The current value of a tensor; views are replayed.
TapeId Read(SessionState& state, const at::Tensor& tensor);
// Makes `value`, which has the tensor's type, the tensor's value; scatters it into the base if the
// tensor is a view.
// Throws: PyTorch's error if `tensor` has internal overlap, unless `overlap` allows it (for values
// that are the same everywhere).
enum class Overlap { kRefused, kAllowed };
void Write(SessionState& state, const at::Tensor& tensor, TapeId value,
           Overlap overlap = Overlap::kRefused);
// The number of a value that `from` holds (or null, if its mark does not count).
TapeId UseValue(SessionState& state, const ValuePtr& value, const Buffer* from);
// Binds `buffer` to `value`.
void BindBuffer(SessionState& state, Buffer* buffer, TapeId value);
// Gives `buffer` another form. Its bytes stay as they are.
void RebaseBytes(SessionState& state, Buffer* buffer, BaseForm form);

// --- append ---
// Appends a record of `op` with the current task and the user's current line; `args` follow its
// schema, with None for tensors.
TapeId Emit(SessionState& state, const OpInfo& op, std::vector<c10::IValue> args,
            absl::InlinedVector<TapeId, 4> operands, absl::Span<const TensorType> results,
            absl::InlinedVector<ir::OperandGroup, 1> groups = {}, bool updates_first = false);
// Appends a record with one result. Arguments are given by name; the others get the schema's
// defaults or None.
struct NamedArg {
  const char* name;
  c10::IValue value;
};
TapeId EmitNamed(SessionState& state, const char* op, absl::InlinedVector<TapeId, 4> operands,
                 std::vector<NamedArg> args, const TensorType& result);
TapeId EmitCast(SessionState& state, TapeId x, DType dtype);
// A value filled with `value`.
TapeId EmitFull(SessionState& state, const TensorType& type, const c10::Scalar& value);
TapeId EmitClone(SessionState& state, TapeId x);
TapeId EmitView(SessionState& state, TapeId x, const Dims& dims);
// `order` has each dimension once.
TapeId EmitPermute(SessionState& state, TapeId x, absl::Span<const int64_t> order);
TapeId EmitExpand(SessionState& state, TapeId x, const Dims& dims);
// `x` across the border of a manual region (csrc/trace/op/manual_axes.h).
TapeId EmitBorder(SessionState& state, bool enters, TapeId x, const Dims& size,
                  const std::string& border, const std::string& mesh);
TensorType TypeOf(SessionState& state, TapeId id);

}  // namespace spmd::trace
