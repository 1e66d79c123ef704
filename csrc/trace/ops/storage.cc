// SPDX-License-Identifier: Apache-2.0
// Ops on storages, such as set_ and resize_.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/is_set_to_native.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

using Args = std::vector<c10::IValue>;

// A tensor was pointed at a Buffer: the Buffer takes its form if it had none of its own.
void MaybeRebase(SessionState& state, const at::Tensor& t) {
  Buffer* buffer = BufferOf(t);
  if (IsBase(buffer->form, t) || !IsDense(t)) return;
  const bool whole = static_cast<size_t>(t.numel()) * t.itemsize() == t.storage().nbytes();
  if (!whole) return;
  const bool only_bytes = buffer->form.dtype == at::kByte && buffer->form.sizes.size() == 1;
  if (buffer->holds_nothing() || (only_bytes && t.scalar_type() != at::kByte)) {
    RebaseBytes(state, buffer, FormOf(t));
  }
}

void Point(SessionState& state, const at::Tensor& self, const c10::Storage& storage, int64_t offset,
           std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  TORCH_CHECK(Buffer::Of(storage) != nullptr, "set_: the storage is on ", storage.device(),
              ", the tensor on ", self.device());
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const MarkPtr mark = self.storage().is_alias_of(storage) ? nullptr : MarkOf(self);
  impl->set_storage_keep_dtype(storage);
  if (strides.empty() && !sizes.empty()) {
    const Dims dense = ContiguousForm(self.scalar_type(), sizes).strides;
    strides.assign(dense.begin(), dense.end());
  }
  impl->set_sizes_and_strides(sizes, strides, offset);
  MaybeRebase(state, self);
  if (mark == nullptr) return;
  if (mark->spec.size() == sizes.size()) return GiveMark(state, self, mark, "set_");
  SayLost(state, "set_", *mark,
          absl::StrCat("since the tensor has ", sizes.size(), " dimensions now"));
}

// A vector of `old` elements, truncated or extended by zeros to `n`.
TapeId Resized(SessionState& state, TapeId x, int64_t old, int64_t n) {
  const TensorType type{state.tape->type(x).dtype, Dims{n}};
  if (n <= old) {
    return EmitNamed(state, "aten::slice.Tensor", {x},
                     {{"dim", 0}, {"start", 0}, {"end", n}, {"step", 1}}, type);
  }
  return EmitNamed(state, "aten::slice_scatter", {EmitFull(state, type, 0), x},
                   {{"dim", 0}, {"start", 0}, {"end", old}, {"step", 1}}, type);
}

void SetStorageOffset(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  Point(state, a[0].toTensor(), a[1].toStorage(), a[2].toInt(), a[3].toIntVector(),
        a[4].toIntVector());
  stack->push_back(a[0]);
}

void SetStorage(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const c10::Storage storage = a[1].toStorage();
  const int64_t n = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  Point(state, self, storage, 0, {n}, {1});
  stack->push_back(self);
}

void SetTensor(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), source = a[1].toTensor();
  if (a.size() > 2) {
    Point(state, self, source.storage(), a[2].toInt(), a[3].toIntVector(), a[4].toIntVector());
  } else {
    Point(state, self, source.storage(), source.storage_offset(), source.sizes().vec(),
          source.strides().vec());
  }
  stack->push_back(self);
}

void SetEmpty(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  c10::Storage storage = Buffer::NewStorage(0, ContiguousForm(self.scalar_type(), {0}));
  Point(state, self, storage, 0, {0}, {1});
  stack->push_back(self);
}

// `format` is None, or the memory format that the tensor gets with its new sizes.
void Restride(const at::Tensor& self, const c10::IValue& format) {
  if (format.isNone()) return;
  const auto f = static_cast<at::MemoryFormat>(format.toInt());
  TORCH_CHECK(f != at::MemoryFormat::Preserve, "Unsupported memory format ", f);
  self.unsafeGetTensorImpl()->empty_tensor_restride(f);
}

void IsSetTo(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  stack->push_back(at::native::is_set_to(a[0].toTensor(), a[1].toTensor()));
}

void ResizeAndFill(SessionState& state, const at::Tensor& self, at::IntArrayRef sizes) {
  const size_t before = self.storage().nbytes();
  ResizeTensor(state, self, sizes);
  if (self.storage().nbytes() <= before) return;
  const auto kept = static_cast<int64_t>(before / self.itemsize()) - self.storage_offset();
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor gained = self.view(-1).slice(0, std::max<int64_t>(kept, 0));
  FillIfDeterministic(gained);
}

void Resize(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  ResizeAndFill(state, self, a[1].toIntVector());
  Restride(self, a[2]);
  stack->push_back(self);
}

void ResizeAs(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), other = a[1].toTensor();
  ResizeAndFill(state, self, other.sizes());
  const bool preserves =
      !a[2].isNone() && static_cast<at::MemoryFormat>(a[2].toInt()) == at::MemoryFormat::Preserve;
  Restride(self,
           preserves ? c10::IValue(static_cast<int64_t>(other.suggest_memory_format())) : a[2]);
  stack->push_back(self);
}

int64_t BytesOf(const BaseForm& form) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(form.dtype));
  for (const int64_t n : form.sizes) bytes *= n;
  return bytes;
}

constexpr HandlerRow kStorageHandlers[] = {
    {"aten::is_set_to", &IsSetTo},
    {"aten::resize_", &Resize},
    {"aten::resize_as_", &ResizeAs},
    {"aten::set_", &SetEmpty},
    {"aten::set_.source_Storage", &SetStorage},
    {"aten::set_.source_Storage_storage_offset", &SetStorageOffset},
    {"aten::set_.source_Tensor", &SetTensor},
    {"aten::set_.source_Tensor_storage_offset", &SetTensor},
};
static_assert(IsSortedAndUnique(kStorageHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> StorageHandlers() { return kStorageHandlers; }

void ResizeStorage(SessionState& state, c10::StorageImpl* storage, int64_t nbytes) {
  const c10::Storage holder(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  Buffer* buffer = Buffer::Of(holder);
  TORCH_CHECK(buffer != nullptr, "resize_: not a storage of ", holder.device());
  const auto old_bytes = static_cast<int64_t>(storage->nbytes());
  if (old_bytes == nbytes) return;
  const auto item = static_cast<int64_t>(c10::elementSize(buffer->form.dtype));
  const bool keep = !buffer->holds_nothing() && nbytes > 0 && old_bytes > 0 && nbytes % item == 0;
  const at::ScalarType dtype = keep ? buffer->form.dtype : at::kByte;
  const int64_t n = nbytes / (keep ? item : 1);
  state.call.looked_at_values =
      true;  // not to be replayed, since the storage is another one afterwards
  TapeId resized = kNoId;
  if (keep) {
    // Nothing is run, since the op that asks for memory may have read its operands already.
    const int64_t old = old_bytes / item;
    at::Tensor flat = NewView(NewTensor(TensorMeta::Contiguous(dtype, {0}), nullptr),
                              TensorMeta::Contiguous(dtype, {old}));
    flat.unsafeGetTensorImpl()->set_storage_keep_dtype(holder);
    resized = Resized(state, Read(state, flat), old, n);
  }
  storage->set_nbytes(nbytes);
  buffer->Hold(nullptr);
  if (buffer->mark != nullptr) {
    MarkNotes& notes = MakeNotes(*buffer);
    notes.form_before = buffer->form;
    notes.mark_before = std::exchange(buffer->mark, nullptr);
  }
  buffer->settled.reset();
  MarkNotes* const notes = NotesOf(*buffer);
  if (!keep && notes != nullptr && notes->mark_before != nullptr &&
      BytesOf(notes->form_before) == nbytes) {
    buffer->Rebase(notes->form_before);
    buffer->mark = std::exchange(notes->mark_before, nullptr);
    return;
  }
  buffer->Rebase(ContiguousForm(dtype, {n}));
  if (keep) BindBuffer(state, buffer, resized);
}

void ResizeTensor(SessionState& state, const at::Tensor& t, at::IntArrayRef sizes) {
  if (t.sizes() == sizes) return;
  const MarkPtr mark = MarkOf(t);
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  const auto needed = (t.storage_offset() + n) * static_cast<int64_t>(t.itemsize());
  if (needed > static_cast<int64_t>(t.storage().nbytes())) {
    ResizeStorage(state, t.storage().unsafeGetStorageImpl(), needed);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  MaybeRebase(state, t);
  if (mark == nullptr || MarkOf(t) != nullptr) return;
  if (mark->spec.size() == sizes.size()) return GiveMark(state, t, mark, "resize_");
  SayLost(state, "resize_", *mark,
          absl::StrCat("since the tensor has ", sizes.size(), " dimensions now"));
}

}  // namespace spmd::trace
