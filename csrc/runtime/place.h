// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace spmd::runtime {

// A piece of real hardware: a torch device of a process. It may host many devices of a mesh, which
// share tiles.
struct Place {
  c10::Device device;
  int process = 0;  // all of them run in this one today

  friend bool operator==(const Place& a, const Place& b) {
    return a.device == b.device && a.process == b.process;
  }
  friend bool operator!=(const Place& a, const Place& b) { return !(a == b); }
};

}  // namespace spmd::runtime
