// SPDX-License-Identifier: Apache-2.0
// A described machine. This is data only.
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

// The machine that plans are priced on by default. It has the ratios of a v5e chip.
const Machine& Nominal();
// The same with links that take no time, so that everything that can be sharded is. Tests of rules
// need this, since gathering a small tensor is otherwise cheaper.
const Machine& NominalWithFreeMoves();

}  // namespace spmd::machine
