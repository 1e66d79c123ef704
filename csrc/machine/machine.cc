// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/machine.h"

#include <limits>

namespace spmd::machine {

const Machine& Nominal() {
  // A v5e chip as in tpu.cc, without a memory limit and without padding of matrices, which would
  // make the plan for a virtual device depend on real hardware.
  static const Machine machine = [] {
    Machine m;
    m.name = "nominal";
    m.flops = 197e12;
    m.memory_bandwidth = 819e9;
    m.link_bandwidth = 2 * 45e9;  // both directions of a ring
    m.latency = 1e-6;
    return m;
  }();
  return machine;
}

const Machine& NominalWithFreeMoves() {
  static const Machine machine = [] {
    Machine m = Nominal();
    m.name = "nominal, moves are free";
    m.link_bandwidth = std::numeric_limits<double>::infinity();
    m.latency = 0;
    return m;
  }();
  return machine;
}

}  // namespace spmd::machine
