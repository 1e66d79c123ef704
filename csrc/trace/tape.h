// SPDX-License-Identifier: Apache-2.0
// What was asked for and not yet run: records over numbered values, inputs first met as operands.
//
// Keys. `strict()` hashes ops, wiring, structural arguments, the types of inputs, marks. `loose()`
// is the same without the starts of slices and the indices of selects: tapes that agree in it
// differ in where they cut only. Thread safety: guarded by the session's lock. One tape per
// session: engine threads append to the tape of the thread that called backward.
#pragma once

#include <c10/core/Scalar.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/buffer.h"
#include "csrc/trace/hash.h"
#include "csrc/trace/record.h"

namespace spmd::trace {

struct Slot {
  ValuePtr value;       // what the number stands for
  int32_t record = -1;  // producer; -1 for an input
  int32_t input = -1;   // index into inputs()
};

struct TapeInput {
  TapeId id;
  std::optional<Mark> mark;  // of the Buffer it was read from
  std::optional<Layout> settled;
};

// A Buffer that was bound to a value of this tape, and what it held when the tape began.
struct Binding {
  c10::weak_intrusive_ptr<Buffer> buffer;
  TapeId before = kNoId;  // the input that it held, if any
};

// Bit i: argument i of the record is a start or an index that loose keys leave out.
uint64_t LooseArguments(const Record& record);
// Bit by bit: the value of argument i is passed when the program runs.
bool IsRuntimeValue(const ArgInfo& info, const c10::IValue& arg);

class Tape {
 public:
  Tape();

  bool empty() const { return records_.empty(); }
  uint64_t number() const { return number_; }
  const std::vector<Record>& records() const { return records_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<TapeInput>& inputs() const { return inputs_; }
  const std::vector<Binding>& bindings() const { return bindings_; }
  const std::vector<c10::Scalar>& scalars() const { return scalars_; }
  const std::vector<std::string>& sources() const { return sources_; }
  struct Annotation {
    TapeId value;
    Mark mark;
  };
  const std::vector<Annotation>& annotations() const { return annotations_; }
  // Key of the tape up to and including each record.
  const std::vector<uint64_t>& prefixes() const { return prefixes_; }
  const Hash128& strict() const { return strict_; }
  const Hash128& loose() const { return loose_; }

  // The number of a value here; an input if it is not one yet. `from`: the Buffer that it is read
  // from, whose mark counts, or null.
  TapeId Use(const ValuePtr& value, const Buffer* from);
  // Appends; fills in first_result, scalars, hashes. The results are new pending values.
  TapeId Append(Record record, absl::Span<const TensorType> results);
  // The pending value itself.
  const ValuePtr& value(TapeId id) const { return slots_[id].value; }
  // A value as it reads through a recipe, remembered.
  std::optional<TapeId> FindView(TapeId base, const Recipe* recipe) const;
  void RememberView(TapeId base, const RecipePtr& recipe, TapeId view);
  // Notes that `buffer` is about to be bound to the value `to`.
  void NoteBinding(Buffer* buffer);
  void Annotate(TapeId value, const Mark& mark);
  // The user's line of the last record; "" is none.
  void SetLine(std::string line);
  int TaskNumber(int64_t graph_task);

 private:
  void MixRecord(const Record& record);

  uint64_t number_;
  std::vector<Record> records_;
  std::vector<Slot> slots_;
  std::vector<TapeInput> inputs_;
  std::vector<Binding> bindings_;
  absl::flat_hash_map<const Buffer*, int> binding_of_;
  std::vector<c10::Scalar> scalars_;
  std::vector<std::string> sources_;
  std::vector<Annotation> annotations_;
  std::vector<int64_t> tasks_;
  std::vector<uint64_t> prefixes_;
  absl::flat_hash_map<std::pair<TapeId, const Recipe*>, TapeId> views_;
  std::vector<RecipePtr> recipes_;  // keeps the keys of views_ alive
  Hash128 strict_;
  Hash128 loose_;
};

}  // namespace spmd::trace
