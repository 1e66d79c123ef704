// SPDX-License-Identifier: Apache-2.0
// What a tape recorded, kept with the program that was compiled from it. The next equal tape need
// not record the same again: it *follows* the recording as long as the two agree.
//
// Events make up a tape's key, in order: inputs as they first occur, records, annotations. Calls
// are the ops as they were called, with all their effects: an equal call at the same place is
// replayed without being analyzed further.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/trace/op/hash.h"
#include "csrc/trace/shape/shape_inference.h"
#include "csrc/trace/tape/record.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

// The origin of a value.
struct Origin {
  int32_t record = -1;  // producer; -1 for an input
  int32_t input = -1;   // number of the input
};

struct Event {
  enum class Kind : uint8_t { kInput, kRecord, kAnnotation };
  Kind kind;
  int32_t index;        // the index among the events of its kind
  int32_t num_results;  // if it is a record
};

// The value `view` that reading `base` through `recipe` gives; records made it before event
// `event`.
struct ViewRead {
  TapeId base;
  RecipePtr recipe;
  TapeId view;
  int32_t event;
};

struct Annotation {
  TapeId value;
  MarkPtr mark;
};

// A tensor among the arguments of a call: one of this device, or undefined.
struct CallOperand {
  // What its Buffer held before the call: a value of the tape (perhaps an input that first occurs
  // here), nothing (memory of torch.empty), or something that the call did not read.
  enum class Holds : uint8_t { kUndefined, kValue, kNothing, kUnread };
  RecipePtr recipe;  // null for the base
  TensorMetaPtr meta;
  Holds holds = Holds::kUndefined;
  TapeId value = kNoId;
  TapeId view = kNoId;  // kValue: the result of reading through the recipe, if it was made
  // The value to which the call binds its Buffer, or kNoId for no change.
  TapeId becomes = kNoId;
  int32_t annotation = -1;  // the annotation of that value by the Buffer's mark
  // For a call that writes: the first operand with the same Buffer, if that is another operand.
  int32_t shares_with = -1;
};

// One argument of the schema.
struct CallArgument {
  enum class Kind : uint8_t { kOperand, kOperands, kNumber, kFixed, kRuntime };
  Kind kind = Kind::kFixed;
  // `runtime`: its numbers are passed when the program runs. `free`, for kNumber: the number may
  // differ.
  bool runtime = false, free = false;
  // For kOperand and kOperands: the range of the call's operands.
  int32_t first = 0, count = 0;
  // For kFixed: the argument, which must be equal; for kRuntime: one of the same kind. For kNumber,
  // a Python number in the place of a tensor: the number.
  c10::IValue value;
  const ArgInfo* info = nullptr;  // decides what is passed at run time
};

// One result; lists are flattened.
struct CallResult {
  enum class Kind : uint8_t { kUndefined, kOperand, kView, kFresh, kValue };
  Kind kind = Kind::kUndefined;
  int32_t operand = -1;  // kOperand: it is this tensor; kView: it shares its storage
  TensorMetaPtr meta;    // kView, kFresh
  TensorMetaPtr memory;  // kFresh: what its memory holds, if the tensor is a view of that
  TapeId value = kNoId;  // kFresh; kNoId for memory not written yet
  MarkPtr mark;          // kFresh: of its Buffer, or null
  RecipePtr recipe;      // of a view; null for the base
  c10::IValue plain;     // kValue
};

struct TracedCall {
  const OpInfo* op = nullptr;
  at::ScalarType default_dtype = at::kFloat;
  int32_t first_event = 0, end_event = 0;
  int32_t num_inputs = 0;  // inputs that first occur in it
  TapeId first_slot = 0, end_slot = 0;
  int32_t num_records = 0;
  int task = 0;
  bool updates_first = false;
  bool has_scalars = false;          // it has arguments that are passed at run time
  std::vector<c10::Scalar> scalars;  // run-time scalars that do not depend on free arguments
  bool binds = false;                // it binds the Buffer of an operand
  bool writes = false;  // it writes, though it may bind nothing: a copy of a tensor to itself
  absl::InlinedVector<CallArgument, 3> args;
  absl::InlinedVector<CallOperand, 2> operands;
  absl::InlinedVector<CallResult, 1> results;  // flattened
  absl::InlinedVector<int32_t, 2>
      list_sizes;  // per result of the schema: -1, or how many make up the list
};

struct Recording {
  std::vector<Record> records;
  std::vector<TensorType> types;   // by TapeId
  std::vector<Origin> origins;     // by TapeId
  std::vector<ManualAxes> manual;  // by TapeId
  std::vector<MarkPtr> input_marks;
  std::vector<Annotation> annotations;
  std::vector<std::string> sources;
  std::vector<Event> events;
  std::vector<Hash128> keys;  // of a tape up to and including an event, by event
  std::vector<ViewRead> views;
  std::vector<std::shared_ptr<const TracedCall>> calls;

  // Places the calls consecutively in memory, since they are replayed in order.
  void AlignCalls();
  // The recording of its first `n` events.
  Recording Prefix(int32_t n) const;
  // The first call that begins at or after event `n`.
  size_t FirstCallAt(int32_t n) const;
  // The keys after each record.
  std::vector<uint64_t> RecordKeys() const;
  // The bytes on the heap, without the shared marks, recipes and metadata (csrc/util/heap_bytes.h).
  int64_t HeapBytes() const;
};
using RecordingPtr = std::shared_ptr<const Recording>;

// True if equal in all that enters keys. If `value` is false, only the kinds are compared (for
// arguments passed at run time).
bool SameArgument(const c10::IValue& a, const c10::IValue& b, bool value);
bool SameRecipe(const RecipePtr& a, const RecipePtr& b);
bool SameMark(const MarkPtr& a, const MarkPtr& b);

}  // namespace spmd::trace
