// SPDX-License-Identifier: Apache-2.0
// Storages of the device: each is an address with a Buffer, and no memory.
#pragma once

#include <c10/core/Allocator.h>

namespace spmd::trace {

c10::Allocator* DeviceAllocatorInstance();

}  // namespace spmd::trace
