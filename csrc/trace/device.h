// SPDX-License-Identifier: Apache-2.0
// The PrivateUse1 device `spmd`: everything that PyTorch asks of a backend except the kernels.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace spmd::trace {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
// The only logical device, spmd:0.
inline c10::Device TheDevice() { return c10::Device(kDeviceType, 0); }

// Registers guard, allocator, hooks, generator and all kernels. Called once per process.
// Throws: c10::Error if the key is taken already.
void RegisterDevice();
// Registers only the kernels, for all ops of the dispatcher (called by RegisterDevice).
void RegisterKernels();
void RegisterAutocast();
c10::Allocator* DeviceAllocatorInstance();

}  // namespace spmd::trace
