// SPDX-License-Identifier: Apache-2.0
// Marks other than the one that a user sets on a whole tensor (Buffer::mark): marks of parts, and
// marks that come with a copy.
//
// Parts. `mark_sharding(w[:8], …)` marks a view, and no spec of `w` can express that. The Buffer
// keeps the mark with the view's recipe, and whenever the view is read, the resulting value is
// annotated.
//
// Copies. clone, to, deepcopy, torch.load, `.data =` and the like pass the mark on. Such a mark
// differs from one that the user has set in two ways: mark_sharding with another spec replaces it,
// and while the copy is pending the mark *waits*. It binds no value until the tape is cut, and then
// only a value that is still held. So a copy that is only a step of a computation does not change
// the plan.
//
// Host tensors. `x.cpu()` has no Buffer. The mark is remembered for its storage while that lives,
// so that `x.cpu().to("spmd")` and `model.cpu()`, `model.to("spmd")` have the mark again.
//
// Requires, everywhere: the session's lock is held.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "csrc/trace/op/op_info.h"
#include "csrc/trace/value/buffer.h"
#include "csrc/trace/value/mark_notes.h"

namespace spmd::trace {

struct SessionState;

// The mark of the value that `step` of a recipe makes, or null.
MarkPtr PartMark(const MarkNotes* notes, const Recipe& step);
// True while the Buffer's mark waits, and so binds no value.
bool MarkWaits(const Buffer& buffer);
// Lets the waiting marks bind their values, if those are still held. Called before the tape is cut.
void BindWaitingMarks(SessionState& state);

// The mark as it applies to the tensor: with dimensions permuted, inserted and left out. Null if
// there is none, or none that a spec of the tensor can express.
MarkPtr MarkOf(const at::Tensor& tensor);
// What `spec`, of a tensor with `recipe`, says of its Buffer's form with sizes `base`; nullopt if
// no spec can express it.
std::optional<PartitionSpec> SpecOfBase(const PartitionSpec& spec, const RecipePtr& recipe,
                                        const Dims& base);
// What a `spec` of the base with sizes `base` says of a view that permutes and merges its
// dimensions. Of dimensions that merge into one only the last may be sharded, and the others give
// the number of blocks. nullopt for any other view.
std::optional<PartitionSpec> MergedSpec(PartitionSpec spec, const RecipePtr& recipe,
                                        const Dims& base);
// For each dimension of a view, the dimension of the base, or -1 if it is inserted. nullopt unless
// the view shows all of the base, with dimensions permuted, and inserted or left out only where
// they have size 1.
std::optional<std::vector<int>> BaseDims(const RecipePtr& recipe, const Dims& base);
// Expresses a mark whose spec has blocks in terms of the form that the tensor's storage takes: the
// tensor with the blocks apart (TakeBlocksApart), of which the tensor is a view. Returns the view
// of that form, and its mark without blocks.
// Errors: InvalidArgument if a dimension of `tensor` does not divide into that many blocks, or if
// `tensor` is not all of its storage.
struct MarkedBlocks {
  at::Tensor view;
  MarkPtr mark;
};
absl::StatusOr<MarkedBlocks> FormInBlocks(SessionState& state, const char* caller,
                                          const at::Tensor& tensor, const Mark& mark);
// True if the tensor is all that its storage holds, in some order of strides.
bool IsWhole(const at::Tensor& tensor);
// True for data (not pending) whose tiles have another layout than the mark says; marked data of
// this kind becomes a copy with the mark's layout. `mark` is in terms of the Buffer.
bool LiesOtherwise(const Value& value, const Mark& mark);

// `to` replaces `from`, or is a copy of it: gives it the mark of `from` unless it has one of its
// own. Either may be on another device. Warns once if the mark cannot be kept.
void KeepMark(SessionState& state, const at::Tensor& from, const at::Tensor& to,
              const char* caller);
// Gives `tensor` a mark that came with a copy or a file.
void GiveMark(SessionState& state, const at::Tensor& tensor, const MarkPtr& mark,
              const char* caller);
// True for ops whose result has the mark of what they copy: clone and to, but not the casts of
// autocast, which are steps of a computation.
bool KeepsMarks(const OpInfo& op);
// Warns that a mark is lost, with the place and what to write instead; once for each place in the
// user's program.
void SayLost(SessionState& state, const char* caller, const Mark& mark, const std::string& because);

}  // namespace spmd::trace
