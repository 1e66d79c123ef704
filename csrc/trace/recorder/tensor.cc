// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/tensor.h"

#include <ATen/ops/zeros.h>
#include <c10/core/TensorImpl.h>

#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

TensorType TypeOf(const TensorMeta& meta) {
  if (!meta.defined) return {DType::kF32, {0}};
  return {runtime::FromScalarType(meta.dtype), meta.sizes};
}
TensorType TypeOf(const at::Tensor& t) {
  return {runtime::FromScalarType(t.scalar_type()), Dims(t.sizes().begin(), t.sizes().end())};
}
Buffer* BufferOf(const at::Tensor& tensor) {
  Buffer* buffer = tensor.has_storage() ? Buffer::Of(tensor.storage()) : nullptr;
  TORCH_CHECK(buffer != nullptr,
              "Expected all tensors to be on the same device, but found at least "
              "two devices, ",
              TheDevice(), " and ", tensor.device(), "!");
  if (SeveralThreads() && buffer->pending()) take_from_thread(*buffer);
  return buffer;
}

bool IsParameter(const at::Tensor& tensor) {
  const at::TensorBase& base = tensor.is_view() ? compat::BaseOf(tensor) : tensor;
  return base.requires_grad() && base.is_leaf();
}

namespace {

void SetForm(const at::Tensor& tensor, const TensorMeta& meta, int64_t offset) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      at::IntArrayRef(meta.sizes.data(), meta.sizes.size()),
      at::IntArrayRef(meta.strides.data(), meta.strides.size()), offset);
}

}  // namespace

Fresh NewMemory(const TensorMeta& meta) {
  const auto type_meta = c10::scalarTypeToTypeMeta(meta.dtype);
  int64_t elements = 1;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    elements = meta.sizes[d] == 0 ? 0 : elements;
    if (elements == 0) break;
    elements += (meta.sizes[d] - 1) * meta.strides[d];
  }
  c10::Storage storage =
      Buffer::NewStorage(elements * static_cast<int64_t>(type_meta.itemsize()),
                         {.dtype = meta.dtype, .sizes = meta.sizes, .strides = meta.strides});
  auto* const buffer = static_cast<Buffer*>(storage.data_ptr().get_context());
  at::Tensor tensor = compat::NewTensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type_meta);
  SetForm(tensor, meta, /*offset=*/0);
  return {std::move(tensor), buffer};
}

at::Tensor NewTensor(const TensorMeta& meta, ValuePtr value) {
  if (!meta.defined) return at::Tensor();
  Fresh fresh = NewMemory(meta);
  fresh.buffer->Hold(std::move(value));
  return std::move(fresh.tensor);
}

at::Tensor NewTensor(SessionState& state, const TensorMeta& meta, TapeId value) {
  TensorMeta dense = meta;
  if (meta.defined) {
    // Results have their own storage: a Meta kernel that returns an expanded or sliced tensor
    // describes a storage that does not exist here.
    const at::IntArrayRef sizes(meta.sizes.data(), meta.sizes.size());
    dense.offset = 0;
    int64_t span = 1, elements = 1;
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      span += (meta.sizes[d] - 1) * meta.strides[d];
      elements *= meta.sizes[d];
    }
    if (elements != 0 && span != elements) dense = TensorMeta::Contiguous(meta.dtype, sizes);
  }
  at::Tensor tensor = NewTensor(dense, nullptr);
  if (tensor.defined()) BindBuffer(state, BufferOf(tensor), value);
  return tensor;
}

at::Tensor NewView(const at::Tensor& base, const TensorMeta& meta) {
  at::Tensor tensor =
      compat::NewTensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                         base.key_set(), c10::scalarTypeToTypeMeta(meta.dtype));
  SetForm(tensor, meta, meta.offset);
  return tensor;
}

ValuePtr HostValue(const at::Tensor& host, bool steal) {
  auto value = c10::make_intrusive<Value>(TypeOf(host));
  const runtime::TileMemory::Scope kept;
  const at::Tensor plain = host.resolve_conj().resolve_neg();
  value->host = steal || !plain.is_same(host) ? plain.contiguous()
                                              : plain.clone(at::MemoryFormat::Contiguous);
  return value;
}

RecipePtr RecipeOf(Buffer* buffer, const at::Tensor& tensor) {
  if (IsBase(buffer->form, tensor)) return nullptr;
  RecipePtr& slot = buffer->recipes.Slot(tensor);
  if (slot == nullptr) slot = StridedRecipe(buffer->form, tensor);
  return slot;
}

}  // namespace spmd::trace
