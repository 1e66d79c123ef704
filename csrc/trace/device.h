// SPDX-License-Identifier: Apache-2.0
// The PrivateUse1 device `spmd`: everything that PyTorch asks of a backend except the kernels.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace spmd::trace {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
// One logical device: spmd:0.
inline c10::Device TheDevice() { return c10::Device(kDeviceType, 0); }

// Registers guard, allocator, hooks, generator and all kernels. Once per process.
// Throws: c10::Error when the key is taken already.
void RegisterDevice();
// Just the kernels: walks the dispatcher (called by RegisterDevice).
void RegisterKernels();
void RegisterAutocast();
c10::Allocator* DeviceAllocatorInstance();

}  // namespace spmd::trace
