// SPDX-License-Identifier: Apache-2.0
// Makes tensors of the device, changes the sizes of their memory, and reads them on the host.
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/Tensor.h>

#include "csrc/trace/shape/shape_inference.h"
#include "csrc/trace/tape/tape.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

struct SessionState;

TensorType TypeOf(const TensorMeta& meta);
TensorType TypeOf(const at::Tensor& tensor);

// The Buffer of a tensor of the device. What it holds is not pending on the tape of another thread:
// it is taken from there. Throws: c10::Error if `tensor` is on another device, or what the other
// thread's program throws.
Buffer* BufferOf(const at::Tensor& tensor);
// Takes what a Buffer holds from another thread's tape (csrc/trace/run/join_threads.h). Set once.
inline void (*take_from_thread)(Buffer& buffer) = nullptr;

// Whether it is a leaf that requires a gradient, or a view of one.
bool IsParameter(const at::Tensor& tensor);

// The recipe of `tensor`; null for the base itself.
RecipePtr RecipeOf(Buffer* buffer, const at::Tensor& tensor);

// Makes a tensor with its own storage, which is not written yet.
// Requires: `meta` is of a defined tensor.
struct Fresh {
  at::Tensor tensor;
  Buffer* buffer;
};
Fresh NewMemory(const TensorMeta& meta);
// The same with a value; `value` may be null.
at::Tensor NewTensor(const TensorMeta& meta, ValuePtr value);
at::Tensor NewTensor(SessionState& state, const TensorMeta& meta, TapeId value);
// Makes a tensor on the storage of `base`.
at::Tensor NewView(const at::Tensor& base, const TensorMeta& meta);
// Makes a Value on the host. Copies `host`, unless `steal` says that nothing else refers to it.
ValuePtr HostValue(const at::Tensor& host, bool steal);

// Changes the sizes of a tensor and grows its storage if necessary (resize_, out= arguments).
void ResizeTensor(SessionState& state, const at::Tensor& tensor, at::IntArrayRef sizes);
// Changes the number of bytes of a storage and keeps those that remain.
void ResizeStorage(SessionState& state, c10::StorageImpl* storage, int64_t nbytes);

}  // namespace spmd::trace
