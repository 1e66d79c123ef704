// SPDX-License-Identifier: Apache-2.0
// Where the axes of a mesh lie on a system, and what a collective over some of them has to go
// through.
//
//   mesh [fsdp=16, tensor=4] on v5p-128 (x 4 ring × y 4 ring × z 4 ring)
//     fsdp    x 4 ring, y 4 ring      two rings carry its collectives
//     tensor  z 4 ring
//   mesh [data=32, model=4] on v4-256 (x 4 ring × y 4 ring × z 8 ring)
//     data    x 4 ring, z 8 ring
//     model   y 4 ring                not half of z, which is no ring
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/machine/system.h"

namespace spmd::machine {

// A prime factor of a mesh axis: `size` places on `level`, `stride` apart from each other.
struct Part {
  int level = 0;
  int64_t size = 1;
  int64_t stride = 1;
  friend bool operator==(const Part& a, const Part& b) {
    return a.level == b.level && a.size == b.size && a.stride == b.stride;
  }
};

// What a collective uses of one level: `size` places joined as `wiring` says, over which one device
// gets `rate` bytes per second from all its neighbours together. Where the level joins groups of
// devices and several of a group take part, the rate is that of all of these, which share what
// arrives.
struct Route {
  int level = 0;
  int64_t size = 1;
  Wiring wiring = Wiring::kRing;
  double rate = 0;
  double latency = 0;
};
using Routes = absl::InlinedVector<Route, 3>;

class Placement {
 public:
  // An axis of a mesh by its prime factors, major first.
  using Factors = std::vector<int64_t>;

  // Chooses places for the axes of a mesh: those that divide the fewest levels between axes, and
  // among these those with the fastest links for the last axis, over which meshes communicate most
  // by convention, then for the one before. Among equals devices are in row-major order. A mesh of
  // fewer devices than the system's lies on a part of it.
  // Errors: InvalidArgument if the number of devices of the mesh does not divide the system's.
  static absl::StatusOr<Placement> Choose(const System& system, absl::Span<const Factors> axes);
  // The placement that a mesh of these axes over `device_ids` has, in the mesh's order.
  // Errors: InvalidArgument if the ids along some axis are not evenly spaced on one level.
  static absl::StatusOr<Placement> OfDevices(const System& system, absl::Span<const Factors> axes,
                                             absl::Span<const int64_t> device_ids);

  // By mesh axis: where each of its factors lies.
  const std::vector<std::vector<Part>>& axes() const { return axes_; }
  // The levels that a collective over these parts uses, in order of level.
  Routes RoutesOf(absl::Span<const Part> parts) const;
  // Bytes per second with which each device gets the rest of a large array that is gathered over
  // these parts. Levels of a torus carry it together; the slowest of the others limits it.
  double GatherBandwidth(absl::Span<const Part> parts) const;
  // The ids of the devices in the order of the mesh.
  std::vector<int64_t> DeviceOrder() const;
  // "x 4 ring, y 4 ring" for mesh axis `axis`.
  std::string ToString(int axis) const;

 private:
  Placement(const System& system, std::vector<std::vector<Part>> axes)
      : system_(system), axes_(std::move(axes)) {}

  System system_;
  std::vector<std::vector<Part>> axes_;
};

}  // namespace spmd::machine
