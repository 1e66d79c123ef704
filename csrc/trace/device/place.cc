// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/device/place.h"

#include <atomic>

namespace spmd::trace {
namespace {

std::atomic<c10::Device> first_place{c10::Device(c10::kCPU)};

}  // namespace

void SetFirstPlace(c10::Device device) { first_place = device; }
c10::Device FirstPlace() { return first_place; }

}  // namespace spmd::trace
