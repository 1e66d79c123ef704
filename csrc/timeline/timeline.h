// SPDX-License-Identifier: Apache-2.0
// How long a program takes on a described machine, instruction by instruction.
//
// Each device computes on one stream and communicates on one more per level of the machine that
// carries its mesh (an axis of the torus, the nodes, the devices of a node). Streams run side by
// side; each runs its instructions in the order of the program. An instruction starts when its
// operands are there and its streams are free; a collective is not started before the calls in
// front of it in the program are done. So work is overlapped exactly where the order of the program
// allows it. All devices do the same, so that one timeline stands for all.
//
// A product takes its padded FLOPs at the chip's fitted efficiency or its bytes at the memory's
// rate, whichever is longer; any other call takes its bytes (csrc/timeline/fusion.h); a collective
// what csrc/timeline/collective.h says.
//
// Left out: arithmetic outside of products, the cost of a kernel's start, collectives that slow
// down the memory of the calls meanwhile, contention of collectives whose levels differ, the
// host, and stragglers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/machine/system.h"
#include "csrc/program/program.h"

namespace spmd::timeline {

struct Entry {
  int instruction = 0;
  int stream = 0;    // the first that it occupies; index into Timeline::streams
  double start = 0;  // seconds
  double seconds = 0;
  double flops = 0;         // of one device, without padding
  double bytes = 0;         // of one device's memory, or sent
  bool recomputed = false;  // computes again what an earlier call has computed
};

struct Timeline {
  std::vector<std::string> streams;    // "compute", then a name per level
  std::vector<Entry> entries;          // in the order of the program, without frees
  std::vector<std::string> placement;  // "fsdp=16: x 4 ring, y 4 ring", one per mesh axis
  std::vector<int64_t> device_order;   // ids on the machine, in the order of the mesh
  int64_t devices = 1;                 // of the largest mesh
  double seconds = 0;                  // until the last stream is done
  double compute_seconds = 0;          // in which the compute stream is busy
  double peak_flops = 0;               // per second and device
  // FLOPs of products, of all devices: of the model (each value once) and of the hardware (with
  // recomputation and what several devices compute alike).
  double model_flops = 0;
  double hardware_flops = 0;

  // Communication that no computation hides.
  double exposed_seconds() const { return seconds - compute_seconds; }
  // FLOPs / (seconds · devices · peak): Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B.
  double mfu() const { return Utilisation(model_flops); }
  double hfu() const { return Utilisation(hardware_flops); }
  std::string ToString(const program::Program& program) const;

 private:
  double Utilisation(double flops) const;
};

// Errors: InvalidArgument if a mesh of the program does not fit the system.
absl::StatusOr<Timeline> Predict(const program::Program& program, const machine::System& system);

}  // namespace spmd::timeline
