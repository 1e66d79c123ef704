// SPDX-License-Identifier: Apache-2.0
// Makes tensors of the device, and reads and writes their values through the tape.
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/trace/buffer.h"
#include "csrc/trace/session_state.h"
#include "csrc/trace/shape_inference.h"
#include "csrc/trace/tape.h"

namespace spmd::trace {

TensorType TypeOf(const TensorMeta& meta);
TensorType TypeOf(const at::Tensor& tensor);

// The Buffer of a tensor of the device. Throws: c10::Error if `tensor` is on another device.
Buffer* BufferOf(const at::Tensor& tensor);

// Makes a tensor with its own storage, which is not written yet.
// Requires: `meta` is of a defined tensor.
struct Fresh {
  at::Tensor tensor;
  Buffer* buffer;
};
Fresh NewMemory(const TensorMeta& meta);
// The same with a value; `value` may be null.
at::Tensor NewTensor(const TensorMeta& meta, ValuePtr value);
at::Tensor NewTensor(Session::State& state, const TensorMeta& meta, TapeId value);
// Makes a tensor on the storage of `base`.
at::Tensor NewView(const at::Tensor& base, const TensorMeta& meta);
// Makes a Value on the host. Copies `host`, unless `steal` says that nothing else refers to it.
ValuePtr HostValue(const at::Tensor& host, bool steal);

// The current value of a tensor; views are replayed.
TapeId Read(Session::State& state, const at::Tensor& tensor);
// Makes `value`, which has the tensor's type, the tensor's value; scatters it into the base if the
// tensor is a view.
// Throws: PyTorch's error if `tensor` has internal overlap, unless `overlap` allows it (for values
// that are the same everywhere).
enum class Overlap { kRefused, kAllowed };
void Write(Session::State& state, const at::Tensor& tensor, TapeId value,
           Overlap overlap = Overlap::kRefused);
// Binds `buffer` to `value`.
void BindBuffer(Session::State& state, Buffer* buffer, TapeId value);
// The recipe of `tensor`; null for the base itself.
RecipePtr RecipeOf(Buffer* buffer, const at::Tensor& tensor);
// Gives `buffer` another form. Its bytes stay as they are.
void RebaseBytes(Session::State& state, Buffer* buffer, BaseForm form);

// Changes the sizes of a tensor and grows its storage if necessary (resize_, out= arguments).
void ResizeTensor(Session::State& state, const at::Tensor& tensor, at::IntArrayRef sizes);
// Changes the number of bytes of a storage and keeps those that remain.
void ResizeStorage(Session::State& state, c10::StorageImpl* storage, int64_t nbytes);

// A new contiguous host copy with the tensor's sizes. Runs what is pending if necessary.
at::Tensor ReadHost(Session::State& state, const at::Tensor& tensor, const char* why);

// --- recording ---
// Appends a record of `op`; `args` follow its schema, with None for tensors.
TapeId Emit(Session::State& state, const OpInfo& op, std::vector<c10::IValue> args,
            absl::InlinedVector<TapeId, 4> operands, absl::Span<const TensorType> results,
            absl::InlinedVector<ir::OperandGroup, 1> groups = {}, bool updates_first = false);
// Appends a record with one result. Arguments are given by name; the others get the schema's
// defaults or None.
struct NamedArg {
  const char* name;
  c10::IValue value;
};
TapeId EmitNamed(Session::State& state, const char* op, absl::InlinedVector<TapeId, 4> operands,
                 std::vector<NamedArg> args, const TensorType& result);
TapeId EmitCast(Session::State& state, TapeId x, DType dtype);
// A value filled with `value`.
TapeId EmitFull(Session::State& state, const TensorType& type, const c10::Scalar& value);
TapeId EmitClone(Session::State& state, TapeId x);
TapeId EmitView(Session::State& state, TapeId x, const Dims& dims);
TapeId EmitExpand(Session::State& state, TapeId x, const Dims& dims);
TensorType TypeOf(Session::State& state, TapeId id);

}  // namespace spmd::trace
