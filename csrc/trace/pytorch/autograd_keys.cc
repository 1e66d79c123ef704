// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/autograd_keys.h"

#include "csrc/trace/compat/keys.h"
#include "csrc/trace/compat/tensor.h"

namespace spmd::trace {

bool IsNext(c10::DispatchKeySet keys) {
  constexpr c10::DispatchKeySet kBetween =
      c10::after_ADInplaceOrView_keyset - c10::DispatchKeySet(c10::DispatchKey::Dense);
  return ((keys & kBetween).raw_repr() & ~c10::full_backend_mask) == 0;
}

bool IsNextOfTracked(c10::DispatchKeySet keys) {
  return IsNext(keys) && keys.has(c10::DispatchKey::ADInplaceOrView);
}

c10::DispatchKeySet ToPyTorchsKernel(c10::DispatchKeySet keys) {
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

bool IsPlain(const at::Tensor& t) {
  // Every thread includes BackendSelect, which is about ops that create tensors from none.
  const c10::DispatchKeySet keys = compat::KeysOf(t) - c10::autocast_dispatch_keyset -
                                   c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  return keys.highestPriorityTypeId() == c10::DispatchKey::AutogradPrivateUse1 && IsNext(keys) &&
         !HasTangent(t);
}

bool HasTangent(const at::Tensor& t) { return t.defined() && compat::TangentOf(t).defined(); }

}  // namespace spmd::trace
