// SPDX-License-Identifier: Apache-2.0
// A described machine. Data only.
#pragma once

#include <cstdint>
#include <string>

namespace spmd::machine {

// Figures of one device and of the links between devices.
struct Machine {
  std::string name;
  double flops = 1e12;                  // per second and device, matrix work
  double memory_bandwidth = 1e11;       // bytes per second and device
  double link_bandwidth = 1e10;         // bytes per second, one way, per device
  double latency = 1e-6;                // seconds per collective
  int64_t memory_bytes = 0;             // per device; 0: unlimited
  int tile_rows = 1, tile_columns = 1;  // the hardware pads matrices to multiples of these
};

// The machine that plans are priced on when nothing else is said: the ratios of a v5e chip.
const Machine& Nominal();
// The same with links that take no time. Whatever may be cut is: what tests of rules need, since
// small tensors would rather be gathered.
const Machine& NominalWithFreeMoves();

}  // namespace spmd::machine
