// SPDX-License-Identifier: Apache-2.0
// Where a backend joins PyTorch (see csrc/trace/compat/keys.h). PyTorch documents these for
// backends, and names them as it names private parts.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace spmd::compat {

// Devices, streams and events of the backend. Instead: none: documented. Without: no device.
using DeviceGuardImplInterface = c10::impl::DeviceGuardImplInterface;
inline void RegisterDeviceGuard(c10::DeviceType type, const DeviceGuardImplInterface* guard) {
  const c10::impl::DeviceGuardImplRegistrar registered(type, guard);
}

// Which kernel computes attention on the device. Instead: none: documented. Without: it is computed
// as a composition of other ops.
template <typename Function>
void ChooseAttentionBy(Function* choose) {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(choose);
}

}  // namespace spmd::compat
