// SPDX-License-Identifier: Apache-2.0
// Marks beyond the one that a user sets on a whole tensor (Buffer::mark): those of parts, and those
// that come with a copy.
//
// Parts. `mark_sharding(w[:8], …)` speaks of a view that no spec of `w` can say. The Buffer keeps
// it with the view's recipe, and whenever the view is read, the value that comes of it is
// annotated.
//
// Copies. clone, to, deepcopy, torch.load, `.data =` and the like hand the mark on. Such a mark
// differs from one that the user has set in two ways: mark_sharding with another spec replaces it,
// and while the copy is pending it *waits*: it binds no value until the tape is cut, and then what
// is still held. So a copy that is but a step of a computation leaves the plan as it was.
//
// Host tensors. `x.cpu()` has no Buffer. Its storage is remembered as long as it lives, so that
// `x.cpu().to("spmd")` and `model.cpu()`, `model.to("spmd")` have the mark again.
//
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "csrc/trace/buffer.h"
#include "csrc/trace/op_info.h"
#include "csrc/trace/session_state.h"

namespace spmd::trace {

// Of the few Buffers that need it.
struct MarkNotes {
  bool copied = false;  // the mark came with a copy
  bool waits = false;   // the pending value is not bound by it yet
  struct Part {
    RecipePtr view;
    MarkPtr mark;
    bool copied;
  };
  std::vector<Part> parts;
  // Of a storage that was resized: what it held before. The mark is there again where the storage
  // is as large again (memory that is given up between uses).
  BaseForm form_before;
  MarkPtr mark_before;
};
// Null where there are none (in csrc/trace/buffer.cc).
MarkNotes* NotesOf(const Buffer& buffer);
MarkNotes& MakeNotes(Buffer& buffer);

// The mark of the value that a step of a recipe makes, or null.
MarkPtr PartMark(const MarkNotes* notes, const Recipe& step);
// True while the Buffer's mark binds no value.
bool MarkWaits(const Buffer& buffer);
// Binds the values of waiting marks that are still held. Before the tape is cut.
void BindWaitingMarks(Session::State& state);

// The mark as the tensor shows it: dimensions permuted, inserted, left out; null where it has none
// or none that a spec of the tensor can say.
MarkPtr MarkOf(const at::Tensor& tensor);
// What a mark of the tensor says of its Buffer's form; nullopt where no spec can say it.
std::optional<PartitionSpec> SpecOfBase(const PartitionSpec& spec, const RecipePtr& recipe,
                                        const Dims& base);
// What a spec of the base says of a view that permutes and merges its dimensions: of those that
// become one the last alone may be cut, and the others are how many blocks it is of. nullopt
// otherwise.
std::optional<PartitionSpec> MergedSpec(PartitionSpec spec, const RecipePtr& recipe,
                                        const Dims& base);
// Dimension of the base for each dimension of a view that shows all of it with dimensions permuted,
// inserted or left out only where they have size 1; nullopt otherwise. -1: an inserted dimension.
std::optional<std::vector<int>> BaseDims(const RecipePtr& recipe, const Dims& base);
// A spec with blocks, of a tensor, in terms of the form that its storage takes: the tensor with the
// blocks apart (TakeBlocksApart), of which it is a view. Gives that view and its plain mark.
// Errors: InvalidArgument where a dimension is not so many blocks, and where the tensor is not all
// of its storage.
struct MarkedBlocks {
  at::Tensor view;
  MarkPtr mark;
};
absl::StatusOr<MarkedBlocks> FormInBlocks(Session::State& state, const char* caller,
                                          const at::Tensor& tensor, const Mark& mark);
// The tensor is all that its storage holds, in some order of strides.
bool IsWhole(const at::Tensor& tensor);
// Data (not pending) whose tiles lie otherwise than the mark says: from now on it is a copy that
// does not. `spec` is the Buffer's.
bool LiesOtherwise(const Value& value, const Mark& mark);

// `to` takes the place of `from`, or is a copy of it: it has the mark, too, unless it has one of
// its own. Either may be on another device. Says once where the mark cannot be kept.
void KeepMark(Session::State& state, const at::Tensor& from, const at::Tensor& to,
              const char* caller);
// The mark that came with a copy or a file.
void GiveMark(Session::State& state, const at::Tensor& tensor, const MarkPtr& mark,
              const char* caller);
// Ops whose result has the mark of what they copy: clone and to, but for the casts of autocast,
// which are steps of a computation.
bool KeepsMarks(const OpInfo& op);
// A mark is gone: says where, and what to write instead. Once for each place in the user's program.
void SayLost(Session::State& state, const char* caller, const Mark& mark,
             const std::string& because);

// The mark as text that GiveSavedMark reads, "" for none.
std::string SavedMark(const at::Tensor& tensor);
void GiveSavedMark(Session::State& state, const at::Tensor& tensor, const std::string& text);
// With torch.save and torch.load, as metadata of tensors.
void RegisterSavedMarks();

}  // namespace spmd::trace
