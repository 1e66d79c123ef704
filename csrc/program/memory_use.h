// SPDX-License-Identifier: Apache-2.0
// What the memory of a device holds while a program runs, by what it is for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "csrc/program/program.h"

namespace spmd::program {

enum class HeldFor : uint8_t {
  kArgument,    // inputs, and the values that take their place: parameters, moments, the batch
  kGradient,    // computed by a backward pass and read outside of it, through moves as well
  kGathered,    // results of all-gathers
  kActivation,  // everything else
};
inline constexpr int kHeldForKinds = 4;

struct MemoryUse {
  using Bytes = std::array<int64_t, kHeldForKinds>;  // by HeldFor
  struct Held {
    ValueId value;
    HeldFor what;
    int64_t bytes;
    int maker;  // the instruction that computes it; -1 for an input
  };
  Bytes at_peak = {};          // per device, on the fullest one
  std::vector<Held> live;      // at the peak, largest first
  std::vector<Bytes> after;    // by instruction that is no free, in order
  int64_t peak_bytes() const;  // that of PeakMemory
};
MemoryUse UseOfMemory(const Program& program);

}  // namespace spmd::program
