// SPDX-License-Identifier: Apache-2.0
// The machine of the tests of timelines, and the timeline of a program on it.
#pragma once

#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "csrc/program/program.h"
#include "csrc/timeline/timeline.h"

namespace spmd::timeline {

// Four devices on a ring: 1 TFLOP/s of which products reach half, 100 GB/s of memory, links of
// 5 GB/s.
inline machine::System RingSystem() {
  machine::Machine device;
  device.name = "test";
  device.flops = 1e12;
  device.memory_bandwidth = 1e11;
  device.link_bandwidth = 1e10;
  device.latency = 1e-6;
  machine::System system = machine::OneRing(device, 4);
  system.efficiency = 0.5;
  return system;
}

inline Timeline Of(absl::string_view text, const machine::System& system = RingSystem()) {
  auto program = program::Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  EXPECT_TRUE(program::Verify(*program).ok()) << program::Verify(*program);
  auto timeline = Predict(*program, system);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *std::move(timeline);
}

}  // namespace spmd::timeline
