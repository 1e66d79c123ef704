// SPDX-License-Identifier: Apache-2.0
// Value: one functional value of the traced program. Buffer: what a Storage of the device holds.
//
// A Value never changes. A Buffer is a variable: writing rebinds it to another Value. A Buffer is
// the context of its Storage's DataPtr, which owns it, so that all state travels with the Storage:
// `.data =`, ties, deepcopy, save and load keep it by themselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/mesh.h"
#include "csrc/runtime/executor_queue.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/record.h"
#include "csrc/trace/view_recipe.h"
#include "csrc/util/pool.h"

namespace spmd::trace {

// A sharding as the user gave it.
struct Mark {
  Mesh mesh;
  PartitionSpec spec;
};
using MarkPtr = std::shared_ptr<const Mark>;
using LayoutPtr = std::shared_ptr<const Layout>;

struct CompiledProgram;  // csrc/trace/session.h

// Invariants: exactly one of: pending (on a tape), run, tiles, host. Logical and stride-free:
// `type` is what a dense row-major tensor of the value would be. Thread safety: guarded by the
// session's lock.
struct Value : c10::intrusive_ptr_target, Pooled<Value> {
  explicit Value(TensorType t) : type(std::move(t)) {}

  // In order of use, for caches: what is looked at when an op is called comes first.
  // A failure after which the value is lost; reading it raises this.
  absl::Status poison;
  // Number on tape `tape`, where it is known there.
  uint64_t tape = 0;
  TapeId id = kNoId;
  bool pending = false;
  // Made by a program: its tiles, or the run that is to make them, and the layout in either case.
  int run_output = -1;
  runtime::PendingRunPtr run;
  runtime::TiledTensorPtr tiles;
  LayoutPtr layout;
  // While `run` is to make it: what its Buffer held before, and keeps if the run fails.
  c10::intrusive_ptr<Value> before;
  at::Tensor host;  // contiguous CPU tensor that nobody else may write
  // The run that made it, for `explain`: its program, while that is kept, and the number of the
  // output.
  std::weak_ptr<CompiledProgram> origin;
  int origin_output = -1;
  int64_t origin_run = 0;  // its number in the session's StepLog
  TensorType type;
};
using ValuePtr = c10::intrusive_ptr<Value>;

// Thread safety: guarded by the session's lock, except for the address and its end, which comes on
// any thread.
class Buffer {
 public:
  // A new Storage of `nbytes` with a fresh Buffer as its context. The address is unique among live
  // Buffers, never null and never readable.
  static c10::Storage NewStorage(int64_t nbytes, const BaseForm& form);
  // Null when the storage is not ours (FakeTensor, foreign pointers that are no Buffer's address).
  static Buffer* Of(const c10::Storage& storage) {
    if (!storage) return nullptr;
    const c10::DataPtr& data = storage.data_ptr();
    if (data.get_deleter() == &Drop) return static_cast<Buffer*>(data.get_context());
    return AtAddressOf(storage);
  }
  static bool IsOurs(const at::Tensor& tensor);

  ~Buffer();
  Buffer(const Buffer&) = delete;

  // --- what it holds ---
  // Nothing until it is written first (memory of torch.empty); then a value, or the number of a
  // pending one on the session's tape: most are never asked for, and never made.
  bool holds_nothing() const { return value_ == nullptr && number_ == kNoId; }
  bool pending() const { return number_ != kNoId || (value_ != nullptr && value_->pending); }
  // The value, made if there is a number only; null for nothing.
  const ValuePtr& value() {
    if (number_ != kNoId) MakeValue();
    return value_;
  }
  // The number, kNoId where there is none; else the value.
  TapeId number() const { return number_; }
  Value* made() const { return value_.get(); }
  // Rebinds it.
  void Bind(ValuePtr v) {
    Hold(std::move(v));
    ++generation;
  }
  void Bind(TapeId number) {
    value_ = nullptr;
    number_ = number;
    ++generation;
  }
  // Without that: memory that nobody has seen yet, or that takes another form.
  void Hold(ValuePtr v) {
    value_ = std::move(v);
    number_ = kNoId;
  }

 private:
  // What is looked at with every op stands together.
  ValuePtr value_;
  TapeId number_ = kNoId;

 public:
  uint32_t generation = 0;  // counts rebindings
  MarkPtr mark;             // committed, or null
  uint64_t written_in = 0;  // the last call gone over that writes it (csrc/trace/replay.h)
  uint64_t bound_on = 0;    // the last tape that bound it to a value
  // What tensor the value stands for; the recipe of every other tensor starts from it.
  BaseForm form;
  uint32_t bound_at = 0;  // where among the bindings of that tape
  // Recipes by (dtype, sizes, strides, offset, conj, neg), valid for `form`.
  RecipeTable recipes;
  LayoutPtr settled;  // in which programs leave it; null until one wrote it
  void* address() const { return address_; }
  // Forgets recipes and takes another form (set_, resize_, whole-storage copies), with layout and
  // mark if these do not fit it.
  void Rebase(BaseForm form);

 private:
  struct Key {};
  friend c10::DataPtr NewDataPtr(const BaseForm& form);
  static void Drop(void* context);
  static Buffer* AtAddressOf(const c10::Storage& storage);
  void MakeValue();

 public:
  Buffer(Key, const BaseForm& form);
  // Memory keeps its address from one Buffer to the next.
  static void* operator new(size_t bytes);
  static void operator delete(void* memory);

 private:
  void* address_ = nullptr;
};
// What an allocator gives: the address and context of a fresh Buffer.
c10::DataPtr NewDataPtr(const BaseForm& form = {});

}  // namespace spmd::trace
