// SPDX-License-Identifier: Apache-2.0
// The environment variables that the runtime reads, in one place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace spmd::runtime {

// SPMD_BACKEND, "cpu" without it.
std::string EnvironmentBackend();

// SPMD_NUM_DEVICES. Errors: InvalidArgument when it is no positive number.
absl::StatusOr<std::optional<int64_t>> EnvironmentDeviceCount();

// SPMD_SYNC=1: programs run on the thread that asks for them.
bool EnvironmentSync();

// SPMD_COALESCE=0: tile by tile, also where adjacent tiles could run as one.
bool EnvironmentCoalesce();

// SPMD_TURNS=0: devices that share a place never take turns; 1: they do wherever that is possible
// (and sums of any size are made inside products), for tests. Without it: where it saves memory.
std::optional<bool> EnvironmentTurns();

// SPMD_KEEP_MEMORY=0: the memory of tiles goes back to the system, see tile_memory.h.
bool EnvironmentKeepMemory();

// SPMD_VERIFY=1: each program is run a second time, unsharded, and the results are compared.
bool EnvironmentVerify();

// SPMD_REPLAY=0: calls that come again are recorded anew, where they could be replayed.
bool EnvironmentReplay();

// SPMD_CHECK_PASSES=1: the verifier runs between the passes of the compiler, as in debug builds.
bool EnvironmentCheckPasses();

// SPMD_PRICE_MOVES=0: plans for the CPU take moves for free, so that whatever may be cut is cut;
// for tests of rules.
bool EnvironmentFreeMoves();

// SPMD_CACHE_DIR: where compiled programs are kept, $XDG_CACHE_HOME/torch_spmd or
// ~/.cache/torch_spmd without it. "" where it is 0 or empty: nowhere.
std::string EnvironmentCacheDirectory();

// SPMD_PROGRAM_MEMORY: how many MiB the programs that are kept may take, 512 without it.
int64_t EnvironmentProgramBytes();

// SPMD_CACHE_SIZE: how many MiB the files of compiled programs may take, 256 without it.
int64_t EnvironmentCacheBytes();

// SPMD_LOG=passes,traffic: what is said on stderr about each compiled program.
struct Log {
  bool passes = false;   // the time of each pass
  bool traffic = false;  // its collectives
};
// Errors: InvalidArgument naming the words there are.
absl::StatusOr<Log> EnvironmentLog();

}  // namespace spmd::runtime
