// SPDX-License-Identifier: Apache-2.0
// A Value is one functional value of the traced program. A Buffer is what a Storage of the device
// holds.
//
// A Value never changes. A Buffer is a variable: writing rebinds it to another Value. A Buffer is
// the context of its Storage's DataPtr, which owns it. All state thus travels with the Storage, and
// `.data =`, ties, deepcopy, save and load keep it without further work.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/type.h"
#include "csrc/mesh/mesh.h"
#include "csrc/runtime/executor_queue.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/sharding/spec.h"
#include "csrc/trace/op/manual_axes.h"
#include "csrc/trace/value/tape_id.h"
#include "csrc/trace/value/view_recipe.h"

namespace spmd::trace {

// A sharding as the user gave it.
struct Mark {
  Mesh mesh;
  PartitionSpec spec;
  bool of_parameter = false;  // set on a leaf that requires a gradient; says nothing of shards
  // Names what was marked, for messages: "parameter 'fc.weight' that shard_module marked at
  // train.py:20". It may be empty, and marks are compared without it.
  std::string name;
};
using MarkPtr = std::shared_ptr<const Mark>;
using LayoutPtr = std::shared_ptr<const Layout>;

struct CompiledProgram;  // csrc/trace/api/session.h
struct Known;            // csrc/trace/run/known_values.h
struct MarkNotes;        // csrc/trace/value/mark_notes.h

// A Value is logical and has no strides: `type` describes the dense row-major tensor of the value.
// Invariants: the value is exactly one of pending (on a tape), to be made by `run`, in `tiles`, or
// on the `host`.
// Thread safety: guarded by the session's lock.
struct Value : c10::intrusive_ptr_target {
  explicit Value(TensorType t) : type(std::move(t)) {}

  // `poison` is the failure by which the value was lost; reading the value raises it.
  absl::Status poison;
  // The value's number `id` on the tape with number `tape`, if that tape has it.
  uint64_t tape = 0;
  TapeId id = kNoId;
  bool pending = false;
  // For the result of a program: its tiles, or the run that will make them, and its layout in
  // either case.
  int run_output = -1;
  runtime::PendingRunPtr run;
  runtime::TiledTensorPtr tiles;
  LayoutPtr layout;
  // While `run` has not made it: what its Buffer held before, and gets back if the run fails.
  c10::intrusive_ptr<Value> before;
  at::Tensor host;  // contiguous CPU tensor that nothing else writes
  // On a backend that only plans: what the value is, if it depends on constants only.
  std::shared_ptr<Known> known;
  // For `explain`: the program of the run that made the value, while that program is kept, and the
  // number of the output.
  std::weak_ptr<CompiledProgram> origin;
  int origin_output = -1;
  int64_t origin_run = 0;  // the run's number in the session's StepLog
  ManualAxes manual = 0;   // along which each device has its own
  TensorType type;
};
using ValuePtr = c10::intrusive_ptr<Value>;

// Thread safety: guarded by the session's lock, except for the address and for the destructor,
// which runs on any thread.
class Buffer {
 public:
  // Makes a Storage of `nbytes` with a new Buffer as its context. The Buffer's address is unique
  // among live Buffers, never null and never readable.
  static c10::Storage NewStorage(int64_t nbytes, const BaseForm& form);
  // Null if `storage` is not of this device: FakeTensors, and foreign pointers that are no Buffer's
  // address.
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
  // A Buffer holds nothing until it is first written (memory of torch.empty). Then it holds a
  // value, or only the number of a pending value on the session's tape: most pending values are
  // never asked for, and so no Value is made for them.
  bool holds_nothing() const { return value_ == nullptr && number_ == kNoId; }
  bool pending() const { return number_ != kNoId || (value_ != nullptr && value_->pending); }
  // The value, which is made if only its number is known; null if the Buffer holds nothing.
  const ValuePtr& value() {
    if (number_ != kNoId) MakeValue();
    return value_;
  }
  // The number, or kNoId if the Buffer has a value or nothing; `made()` is the value, or null if it
  // has a number or nothing.
  TapeId number() const { return number_; }
  // The axes along which each device has its own value.
  ManualAxes manual() const {
    return number_ != kNoId ? ManualOfNumber() : value_ != nullptr ? value_->manual : 0;
  }
  Value* made() const { return value_.get(); }
  // Rebinds the Buffer, which counts as a new generation.
  void Bind(ValuePtr v) {
    Hold(std::move(v));
    ++generation;
  }
  void Bind(TapeId number) {
    value_ = nullptr;
    number_ = number;
    ++generation;
  }
  // Holds `v` without a new generation: for memory that nobody has seen yet, and where only the
  // form changes.
  void Hold(ValuePtr v) {
    value_ = std::move(v);
    number_ = kNoId;
  }

 private:
  ValuePtr value_;
  TapeId number_ = kNoId;

 public:
  uint32_t generation = 0;  // counts rebindings
  MarkPtr mark;             // committed, or null
  uint64_t written_in = 0;  // the last replayed call that writes it (csrc/trace/recorder/replay.h)
  uint64_t bound_on = 0;    // the last tape that bound it to a value
  // The tensor that the value stands for; the recipe of every other tensor starts from it.
  BaseForm form;
  uint32_t bound_at = 0;  // the index among the bindings of that tape
  // Recipes by (dtype, sizes, strides, offset, conj, neg), which hold for `form`.
  RecipeTable recipes;
  LayoutPtr settled;  // the layout in which programs leave it; null until one wrote it
  MarkPtr like;       // of a gradient: its parameter's mark, which programs leave it in; or null
  bool is_gradient = false;  // of a leaf
  void* address() const { return address_; }
  // Forgets the recipes and takes another form (set_, resize_, whole-storage copies). A layout or
  // mark that does not fit `form` is dropped.
  void Rebase(BaseForm form);

 private:
  struct Key {};
  friend c10::DataPtr NewDataPtr(const BaseForm& form);
  static void Drop(void* context);
  friend MarkNotes* NotesOf(const Buffer& buffer);
  friend MarkNotes& MakeNotes(Buffer& buffer);
  static Buffer* AtAddressOf(const c10::Storage& storage);
  void MakeValue();
  ManualAxes ManualOfNumber() const;

 public:
  Buffer(Key, const BaseForm& form);

 private:
  const size_t cell_;  // its place in the book of addresses
  void* const address_;
  std::unique_ptr<MarkNotes> notes_;  // null for most Buffers
};
// Makes what an allocator returns: the address of a new Buffer, with the Buffer as its context.
c10::DataPtr NewDataPtr(const BaseForm& form = {});

}  // namespace spmd::trace
