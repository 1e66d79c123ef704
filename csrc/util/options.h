// SPDX-License-Identifier: Apache-2.0
// The settings of the process, and the only place that reads the environment variables SPMD_….
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace spmd {

// Whether devices that share a place take turns (csrc/runtime/schedule.h; coalesced ones do
// so in a few groups, csrc/program/one_place/turns.h): never, where that saves memory, or wherever
// it is possible. With kAlways, even the smallest sums are computed from their products
// (csrc/runtime/one_place/sum_of_products.h).
enum class Turns : uint8_t { kNever, kWhereTheyPay, kAlways };

// Each field is set by the variable of its name: `coalesce` by SPMD_COALESCE. A switch is on if the
// variable is 1 and off if it is 0.
struct Options {
  std::string backend = "cpu";
  std::optional<int64_t> num_devices;  // of backends whose name does not give it

  // False: nothing is done that is done only because virtual devices share one CPU
  // (csrc/runtime/one_place/README.md). It overrides `coalesce` and `turns`.
  bool one_place = true;
  // Adjacent tiles of devices that share a place run as one (csrc/program/one_place/coalesce.h).
  bool coalesce = true;
  // Tiles that several devices hold are kept and computed once. No variable sets it.
  bool deduplicate = true;
  Turns turns = Turns::kWhereTheyPay;  // 0: never; 1: always
  // Bytes per device that a program may need, if that is less than what the device has; 0: what the
  // device has. No variable sets it.
  int64_t memory_limit = 0;
  // False: plans are made as if moves cost nothing, so that whatever can be sharded is sharded. For
  // tests of rules.
  bool price_moves = true;
  // Calls that equal those of an earlier step are replayed from its recording.
  bool replay = true;

  bool verify = false;        // each program also runs unsharded, and the results are compared
  bool check_passes = false;  // the verifier runs between the passes of the compiler
  // What is printed on stderr for each compiled program: SPMD_LOG=passes,traffic.
  struct Log {
    bool passes = false;   // the time of each pass
    bool traffic = false;  // its collectives
  };
  Log log;
  // The file to which the graph and the program of each compilation are appended as text; "": none.
  std::string dump;

  bool sync = false;  // programs run on the thread that starts them
  // The processes of a torch.distributed job share the devices (csrc/trace/session/processes.h).
  bool distributed = true;
  double timeout = 1800;  // seconds that the processes of a job wait for each other
  // Sums between processes have the bits of one process that runs tile by tile: every partial sum
  // travels alone. For tests.
  bool exact = false;
  // Exchanges between processes go on during computation. Not set: where each process of the host
  // has a core more than it has threads.
  std::optional<bool> overlap;
  // The memory of tiles is kept for later ones (csrc/runtime/one_place/tile_memory.h).
  bool keep_memory = true;
  // Bytes that compiled programs may take in memory; the variable is in MiB.
  int64_t program_memory = int64_t{512} << 20;
};

// The value of an environment variable; null if it is not set.
using EnvironmentVariable = absl::FunctionRef<const char*(const char* name)>;

// Variables that are not set, or empty, leave the defaults.
// Errors: InvalidArgument, with the variable, its value, and the values that exist.
absl::StatusOr<Options> OptionsFrom(EnvironmentVariable variable);
absl::StatusOr<Options> OptionsFromEnvironment();

}  // namespace spmd
