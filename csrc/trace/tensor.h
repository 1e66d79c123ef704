// SPDX-License-Identifier: Apache-2.0
// Tensors of the device: making them, and reading and writing their values through the tape.
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

// The Buffer of a tensor of ours. Throws: c10::Error for another device's tensor.
Buffer* BufferOf(const at::Tensor& tensor);

// A tensor with storage of its own, not written yet. Requires: `meta` is of a defined tensor.
struct Fresh {
  at::Tensor tensor;
  Buffer* buffer;
};
Fresh NewMemory(const TensorMeta& meta);
// The same with a value, which may be null.
at::Tensor NewTensor(const TensorMeta& meta, ValuePtr value);
at::Tensor NewTensor(Session::State& state, const TensorMeta& meta, TapeId value);
// A tensor on the storage of `base`.
at::Tensor NewView(const at::Tensor& base, const TensorMeta& meta);
// A host value of ours: copies `host` unless `steal` says that nobody else has it.
ValuePtr HostValue(const at::Tensor& host, bool steal);

// The value that a tensor has now, views replayed.
TapeId Read(Session::State& state, const at::Tensor& tensor);
// Makes `value` (of the tensor's type) the tensor's value; scatters where it is a view.
// Throws: PyTorch's error for tensors with internal overlap, unless that is allowed (for values
// that are the same everywhere).
enum class Overlap { kRefused, kAllowed };
void Write(Session::State& state, const at::Tensor& tensor, TapeId value,
           Overlap overlap = Overlap::kRefused);
// Rebinds a whole Buffer.
void BindBuffer(Session::State& state, Buffer* buffer, TapeId value);
// The recipe of a tensor: null for the base itself.
RecipePtr RecipeOf(Buffer* buffer, const at::Tensor& tensor);
// Gives a Buffer another form, its bytes unchanged.
void RebaseBytes(Session::State& state, Buffer* buffer, BaseForm form);

// Changes the sizes of a tensor, growing its storage if it has to (resize_, out= arguments).
void ResizeTensor(Session::State& state, const at::Tensor& tensor, at::IntArrayRef sizes);
// Changes the number of bytes of a storage, keeping those that remain.
void ResizeStorage(Session::State& state, c10::StorageImpl* storage, int64_t nbytes);

// A fresh host copy with the tensor's sizes, contiguous. Runs what is pending if it has to.
at::Tensor ReadHost(Session::State& state, const at::Tensor& tensor, const char* why);

// --- recording ---
// Appends a record of `op`; `args` follow its schema, with None for tensors.
TapeId Emit(Session::State& state, const OpInfo& op, std::vector<c10::IValue> args,
            absl::InlinedVector<TapeId, 4> operands, absl::Span<const TensorType> results,
            absl::InlinedVector<ir::OperandGroup, 1> groups = {}, bool updates_first = false);
// One result; arguments by name, the others with the schema's defaults or None.
struct NamedArg {
  const char* name;
  c10::IValue value;
};
TapeId EmitNamed(Session::State& state, const char* op, absl::InlinedVector<TapeId, 4> operands,
                 std::vector<NamedArg> args, const TensorType& result);
TapeId EmitCast(Session::State& state, TapeId x, DType dtype);
// A value filled with `value`; `constant`: it is part of the program's key.
TapeId EmitFull(Session::State& state, const TensorType& type, const c10::Scalar& value);
TapeId EmitExpand(Session::State& state, TapeId x, const Dims& dims);
TensorType TypeOf(Session::State& state, TapeId id);

}  // namespace spmd::trace
