// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/marking.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// What a marking will set: the mark of a Buffer or, if `view` is set, of a part of it. A part is a
// view that is not the whole storage, or is all of it in a form that no spec expresses.
struct Planned {
  Buffer* buffer;
  RecipePtr view;
  MarkPtr mark;
};

const MarkNotes::Part* FindPart(Buffer* buffer, const RecipePtr& view) {
  const MarkNotes* const notes = NotesOf(*buffer);
  if (notes == nullptr) return nullptr;
  for (const MarkNotes::Part& part : notes->parts) {
    if (SameRecipe(part.view, view)) return &part;
  }
  return nullptr;
}

// The mark with which a new one must agree: one that the user has set, or one of `before`.
MarkPtr BindingMark(const Planned& plan, absl::Span<const Planned> before) {
  for (const Planned& other : before) {
    if (other.buffer != plan.buffer || (other.view == nullptr) != (plan.view == nullptr)) continue;
    if (plan.view == nullptr || SameRecipe(other.view, plan.view)) return other.mark;
  }
  if (plan.view != nullptr) {
    const MarkNotes::Part* const part = FindPart(plan.buffer, plan.view);
    return part == nullptr || part->copied ? nullptr : part->mark;
  }
  const MarkNotes* const notes = NotesOf(*plan.buffer);
  return notes != nullptr && notes->copied ? nullptr : plan.buffer->mark;
}

// Sets no mark, but may give the Buffer another form of the same bytes.
absl::StatusOr<Planned> PlanMark(SessionState& state, const Marking& marking,
                                 absl::Span<const Planned> before) {
  at::Tensor tensor = marking.tensor;
  SPMD_RETURN_IF_ERROR(CheckOurs(marking.caller.c_str(), tensor));
  SPMD_RETURN_IF_ERROR(NoteMesh(state, marking.mesh));
  // Errors of the spec are in terms of the tensor that was given.
  SPMD_RETURN_IF_ERROR(
      CheckSpec(state, marking.caller.c_str(), marking.mesh, marking.spec, tensor.dim()));
  PartitionSpec spec = marking.spec;
  if (HasBlocks(spec)) {
    SPMD_ASSIGN_OR_RETURN(const MarkedBlocks marked, FormInBlocks(state, marking.caller.c_str(),
                                                                  tensor, {marking.mesh, spec}));
    tensor = marked.view;
    spec = marked.mark->spec;
  }
  Buffer* const buffer = BufferOf(tensor);
  const Dims base(buffer->form.sizes.begin(), buffer->form.sizes.end());
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  std::optional<PartitionSpec> base_spec = SpecOfBase(spec, recipe, base);
  const bool is_new =
      buffer->mark == nullptr && std::none_of(before.begin(), before.end(),
                                              [&](const Planned& p) { return p.buffer == buffer; });
  const MarkNotes* const notes = NotesOf(*buffer);
  const bool copied = notes != nullptr && notes->copied;
  if (!base_spec.has_value() && IsWhole(tensor) && (is_new || copied)) {
    // A reshape of the whole storage: the storage takes its form, and other views derive from it.
    // If a copied mark is replaced, the form changes when the new mark is set.
    if (is_new) RebaseBytes(state, buffer, FormOf(tensor));
    base_spec = spec;
  }
  const bool is_part = !base_spec.has_value();
  const Planned plan{
      buffer, is_part ? recipe : nullptr,
      std::make_shared<const Mark>(Mark{marking.mesh, is_part ? spec : *std::move(base_spec)})};
  const MarkPtr binding = BindingMark(plan, before);
  if (binding != nullptr && !SameMark(binding, plan.mark)) {
    return MarkedAlready(*binding, {marking.mesh, marking.spec}, marking.caller);
  }
  return plan;
}

}  // namespace

absl::Status CheckMarks(absl::Span<const Marking> markings) {
  SessionLock lock;
  if (!std::all_of(markings.begin(), markings.end(),
                   [&](const Marking& marking) { return IsUnused(*lock, marking.tensor); })) {
    SPMD_RETURN_IF_ERROR(RunWaitingStep(*lock));
  }
  std::vector<Planned> plans;
  for (const Marking& marking : markings) {
    SPMD_ASSIGN_OR_RETURN(Planned plan, PlanMark(*lock, marking, plans));
    plans.push_back(std::move(plan));
  }
  return absl::OkStatus();
}

bool IsUnused(const SessionState& state, const at::Tensor& tensor) {
  if (!Buffer::IsOurs(tensor)) return true;  // refused in any case
  const Value* const value = BufferOf(tensor)->made();
  return value != nullptr && !value->pending && value->origin_output < 0 &&
         value->tape != state.tape->number();
}

}  // namespace spmd::trace
