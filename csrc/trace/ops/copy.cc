// SPDX-License-Identifier: Apache-2.0
// Copies between host and device and between tensors, and ops that read values.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>

#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/overlap.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/read_host.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// The metadata of a copy of `self` under a memory format.
TensorMeta CopyMeta(const at::Tensor& self, at::ScalarType dtype, const c10::IValue& format) {
  const at::MemoryFormat f =
      format.isNone() ? at::MemoryFormat::Preserve : static_cast<at::MemoryFormat>(format.toInt());
  TensorMeta meta = TensorMeta::Contiguous(dtype, self.sizes());
  if (f == at::MemoryFormat::Preserve) {
    if (self.is_non_overlapping_and_dense()) {
      meta.strides.assign(self.strides().begin(), self.strides().end());
    } else {
      const auto strides = at::infer_dense_strides(self.sizes(), self.strides());
      meta.strides.assign(strides.begin(), strides.end());
    }
  } else if (f != at::MemoryFormat::Contiguous) {
    const auto strides = f == at::MemoryFormat::ChannelsLast
                             ? c10::get_channels_last_strides_2d(self.sizes())
                             : c10::get_channels_last_strides_3d(self.sizes());
    meta.strides.assign(strides.begin(), strides.end());
  }
  return meta;
}

void ToCopy(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const at::ScalarType dtype =
      a[1].isNone() ? self.scalar_type() : static_cast<at::ScalarType>(a[1].toInt());
  const c10::Device device = a[3].isNone() ? self.device() : a[3].toDevice();
  TORCH_CHECK_NOT_IMPLEMENTED(
      a[2].isNone() || static_cast<c10::Layout>(a[2].toInt()) == at::kStrided,
      "torch_spmd: only strided tensors are supported on '", TheDevice(), "'");
  const TensorMeta meta = CopyMeta(self, dtype, a[6]);
  if (!Buffer::IsOurs(self)) {
    TORCH_CHECK_NOT_IMPLEMENTED(self.layout() == at::kStrided, "torch_spmd: ", self.layout(),
                                " tensors are not supported on '", TheDevice(),
                                "'; keep them on the CPU");
    // The bytes are copied now, since the caller may reuse its tensor.
    const at::Tensor host = self.cpu().to(dtype);
    const at::Tensor out =
        NewTensor(meta, HostValue(host, !host.is_same(self) && !host.is_alias_of(self)));
    KeepMark(state, self, out, "to");
    stack->push_back(out);
    return;
  }
  if (device.type() == kDeviceType) {
    const at::Tensor out =
        NewTensor(state, meta, EmitCast(state, Read(state, self), runtime::FromScalarType(dtype)));
    if (KeepsMarks(op)) KeepMark(state, self, out, "to");
    stack->push_back(out);
    return;
  }
  const at::Tensor host = ReadHost(state, self, "cpu");
  at::Tensor out = at::empty_strided(
      self.sizes(), at::IntArrayRef(meta.strides.data(), meta.strides.size()),
      host.options().dtype(dtype).device(device).pinned_memory(!a[4].isNone() && a[4].toBool()));
  out.copy_(host);
  KeepMark(state, self, out, "cpu");
  stack->push_back(out);
}

void Clone(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const at::Tensor out =
      NewTensor(state, CopyMeta(self, self.scalar_type(), a[1]), Read(state, self));
  KeepMark(state, self, out, "clone");
  stack->push_back(out);
}

// A clone with another shape and the same order of elements.
void ReshapeCopy(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const at::DimVector sizes = at::infer_size_dv(a[1].toIntVector(), self.numel());
  const TensorMeta meta = TensorMeta::Contiguous(self.scalar_type(), sizes);
  const TapeId value =
      EmitNamed(state, "aten::view", {Read(state, self)},
                {{"size", std::vector<int64_t>(sizes.begin(), sizes.end())}}, TypeOf(meta));
  stack->push_back(NewTensor(state, meta, value));
}

// Copies all bytes of a storage to all bytes of another, both seen as bytes: the Buffer's value is
// taken as it is.
bool CopyWholeBuffer(SessionState& state, const at::Tensor& dst, const at::Tensor& src) {
  Buffer* to = BufferOf(dst);
  Buffer* from = BufferOf(src);
  const auto whole = [](const at::Tensor& t) {
    return t.scalar_type() == at::kByte && IsDense(t) &&
           static_cast<size_t>(t.numel()) == t.storage().nbytes();
  };
  if (!whole(dst) || !whole(src) || dst.numel() != src.numel() || from->form.dtype == at::kByte ||
      from->holds_nothing()) {
    return false;
  }
  state.call.looked_at_values = true;  // not to be replayed, since the mark comes with the value
  if (to == from) return true;
  to->Hold(nullptr);
  to->Rebase(from->form);
  if (from->mark != nullptr) to->mark = from->mark;
  if (const MarkNotes* const notes = NotesOf(*from); notes != nullptr || from->mark != nullptr) {
    MarkNotes& copied = MakeNotes(*to);
    if (notes != nullptr) copied = *notes;
    copied.copied = true;
  }
  BindBuffer(state, to, state.tape->Use(from->value(), from));
  return true;
}

void Copy(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor dst = a[0].toTensor(), src = a[1].toTensor();
  stack->push_back(dst);
  if (dst.is_same(src)) return;
  if (!Buffer::IsOurs(dst)) {
    TORCH_CHECK(dst.device().type() != kDeviceType, "copy_: the destination has no storage");
    dst.copy_(ReadHost(state, src, "cpu"));
    return;
  }
  TORCH_CHECK(at::is_expandable_to(src.sizes(), dst.sizes()), "The size of tensor a (",
              dst.dim() > 0 ? dst.size(-1) : 1, ") must match the size of tensor b (",
              src.dim() > 0 ? src.size(-1) : 1, ") at non-singleton dimension ",
              std::max<int64_t>(dst.dim() - 1, 0));
  CheckNoPartialOverlap(dst, src);
  const Dims dims(dst.sizes().begin(), dst.sizes().end());
  const DType dtype = runtime::FromScalarType(dst.scalar_type());
  if (!Buffer::IsOurs(src)) {
    const at::Tensor host = src.cpu().to(dst.scalar_type()).expand(dst.sizes());
    Write(state, dst, state.tape->Use(HostValue(host, /*steal=*/false), nullptr));
    return;
  }
  if (CopyWholeBuffer(state, dst, src)) return;
  Write(state, dst, EmitExpand(state, EmitCast(state, Read(state, src), dtype), dims));
}

void LocalScalarDense(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor host = ReadHost(state, a[0].toTensor(), "item");
  TORCH_CHECK(host.numel() == 1, "a Tensor with ", host.numel(),
              " elements cannot be converted to Scalar");
  stack->push_back(c10::IValue(host.reshape({}).item()));
}

void Equal(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor x = a[0].toTensor(), y = a[1].toTensor();
  BufferOf(x);
  BufferOf(y);
  stack->push_back(at::equal(ReadHost(state, x, "equal"), ReadHost(state, y, "equal")));
}

void IsSameSize(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  stack->push_back(a[0].toTensor().sizes() == a[1].toTensor().sizes());
}

void HasSameStorageNumel(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor x = a[0].toTensor(), y = a[1].toTensor();
  const auto n = [](const at::Tensor& t) {
    return static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
  };
  stack->push_back(n(x) == n(y));
}

void PinMemory(SessionState&, const OpInfo&, torch::jit::Stack*) {
  TORCH_CHECK(false, "pin_memory: the tensor is on '", TheDevice(),
              "'; only tensors of the CPU can be pinned");
}

void IsPinned(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  PopArguments(op, stack);
  stack->push_back(false);
}

constexpr HandlerRow kCopyHandlers[] = {
    {"aten::_has_same_storage_numel", &HasSameStorageNumel},
    {"aten::_local_scalar_dense", &LocalScalarDense},
    {"aten::_pin_memory", &PinMemory},
    {"aten::_reshape_copy", &ReshapeCopy, kReplayable},
    {"aten::_to_copy", &ToCopy, kReplayable},
    {"aten::clone", &Clone, kReplayable},
    {"aten::copy_", &Copy, kReplayable},
    {"aten::equal", &Equal},
    {"aten::is_pinned", &IsPinned},
    {"aten::is_same_size", &IsSameSize},
};
static_assert(IsSortedAndUnique(kCopyHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> CopyHandlers() { return kCopyHandlers; }

}  // namespace spmd::trace
