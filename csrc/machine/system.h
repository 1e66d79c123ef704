// SPDX-License-Identifier: Apache-2.0
// Whole machines by name: their devices and how these are wired.
//
//   ParseSystem("v5p-128")  64 devices, x 4 ring × y 4 ring × z 4 ring
//   ParseSystem("v3-128")   128 devices, x 8 line × y 8 line × core 2 switch
//   ParseSystem("16xh100")  16 devices, node 2 switch × gpu 8 switch
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/machine/machine.h"

namespace spmd::machine {

enum class Wiring : uint8_t {
  kRing,    // each device is linked to two neighbours; the last to the first
  kLine,    // the same without the link from the last to the first
  kSwitch,  // each device reaches every other one through its one port
};
absl::string_view WiringName(Wiring wiring);  // "ring" "line" "switch"

// One axis of a torus, the nodes of a cluster, the devices of a node, the cores of a chip.
struct Level {
  std::string name;
  int64_t size = 1;
  Wiring wiring = Wiring::kRing;
  // Bytes per second, one way, of one link to one neighbour (ring, line) or of the port (switch).
  // Where a level joins groups of devices, such as nodes, this is one device's share.
  double rate = 0;
  double latency = 0;  // seconds per hop
};

struct System {
  std::string name;
  Machine device;
  std::vector<Level> levels;  // major first: device ids are row-major over them; none has size 1
  // The part of the peak FLOP/s that large products reach. FITTED to published runs, see
  // efficiency.h; 1 where none is known. Nothing else about a machine is fitted.
  double efficiency = 1;

  int64_t num_devices() const;
  std::string ToString() const;  // "x 4 ring × y 4 ring × z 4 ring"
};

// The system of a TPU slice as in ParseTpuSlice, or of "<number>x<gpu>": that many GPUs in nodes of
// eight, joined by InfiniBand.
// Errors: InvalidArgument naming what is known.
absl::StatusOr<System> ParseSystem(absl::string_view name);
// The same for GPUs alone.
absl::StatusOr<System> ParseGpuCluster(absl::string_view name);

// `devices` devices on one ring. `machine` says what the links of a device carry together.
System OneRing(const Machine& machine, int64_t devices);

}  // namespace spmd::machine
