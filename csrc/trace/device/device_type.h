// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace spmd::trace {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
// The only logical device, spmd:0.
inline c10::Device TheDevice() { return c10::Device(kDeviceType, 0); }

}  // namespace spmd::trace
