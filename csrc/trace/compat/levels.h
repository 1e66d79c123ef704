// SPDX-License-Identifier: Apache-2.0
// The levels of torch.func that a thread is in (see csrc/trace/compat/keys.h). Manual regions run
// at levels of vmap.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace spmd::compat {

// What varies along the axis of a level. Instead: torch.vmap and the staticmethod vmap of an
// autograd.Function. Without: shard_map raises.
using BatchedTensorImpl = at::functorch::BatchedTensorImpl;
inline at::Tensor MakeBatched(at::Tensor value, int64_t dim, int64_t level) {
  return at::functorch::makeBatched(std::move(value), dim, level);
}

// The value behind a tensor that is batched at this level, and the dimension; else null. As above.
inline const BatchedTensorImpl* BatchedAt(const at::Tensor& t, int64_t level) {
  const BatchedTensorImpl* const impl = at::functorch::maybeGetBatchedImpl(t);
  return impl != nullptr && impl->level() == level ? impl : nullptr;
}

// The level of a batched tensor. As above.
inline std::optional<int64_t> LevelOf(const at::Tensor& t) {
  const BatchedTensorImpl* const impl = at::functorch::maybeGetBatchedImpl(t);
  return impl != nullptr ? std::optional(impl->level()) : std::nullopt;
}

// Whether it is a tensor of torch.grad. Instead: none. Without: it may leave a region.
inline bool IsOfGrad(const at::Tensor& t) {
  return t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
}

// Whether it is a tensor of a level of torch.func. Instead: none in C++. Without: what varies in a
// region is not known under torch.func.
inline bool IsOfLevel(const at::Tensor& t) {
  return t.key_set().has_any(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched}));
}

// Whether levels see ops. Instead: none. Without: functions of regions do not run on shards.
inline bool LevelsSeeOps() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// The keys of levels. Instead: none. Without: sums over an axis are as slow as other collectives.
inline constexpr c10::DispatchKeySet kKeysOfLevels(
    {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
     c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::FuncTorchVmapMode,
     c10::DispatchKey::FuncTorchBatched});

}  // namespace spmd::compat
