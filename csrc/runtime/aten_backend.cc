// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/aten_backend.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

namespace spmd::runtime {
namespace {

at::Tensor BytesOf(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "bytes of a tensor that is not contiguous");
  return tensor.view({-1}).view(at::kByte);
}

}  // namespace

at::Tensor AtenBackend::Allocate(const Place& place, at::IntArrayRef sizes,
                                 at::ScalarType type) const {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(place.device));
}

at::Tensor AtenBackend::AllocateLike(const Place& place, const at::Tensor& tensor) const {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(place.device));
}

void AtenBackend::Run(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  op.callBoxed(&stack);
}

void AtenBackend::Copy(const at::Tensor& from, const at::Tensor& to) const { to.copy_(from); }

at::Tensor AtenBackend::CopyTo(const Place& place, const at::Tensor& tensor) const {
  return tensor.to(place.device, tensor.scalar_type());
}

void AtenBackend::MoveBytes(const at::Tensor& from, const at::Tensor& to) const {
  BytesOf(to).copy_(BytesOf(from));
}

}  // namespace spmd::runtime
