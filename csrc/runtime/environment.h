// SPDX-License-Identifier: Apache-2.0
// The environment variables that the runtime reads, in one place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace spmd::runtime {

// SPMD_BACKEND; "cpu" if it is not set.
std::string EnvironmentBackend();

// SPMD_NUM_DEVICES; nullopt if it is not set. Errors: InvalidArgument if it is not a positive
// number.
absl::StatusOr<std::optional<int64_t>> EnvironmentDeviceCount();

// SPMD_SYNC=1: programs run on the thread that starts them.
bool EnvironmentSync();

// SPMD_COALESCE=0: programs are not coalesced, so each op runs tile by tile.
bool EnvironmentCoalesce();

// SPMD_TURNS=0: devices that share a place never take turns. SPMD_TURNS=1: they do so wherever that
// is possible, and sums of any size are computed from their products (for tests). If it is not set
// (nullopt), they take turns where that saves memory.
std::optional<bool> EnvironmentTurns();

// SPMD_KEEP_MEMORY=0: the memory of tiles is returned to the system at once, see tile_memory.h.
bool EnvironmentKeepMemory();

// SPMD_VERIFY=1: each program is run a second time, unsharded, and the results are compared.
bool EnvironmentVerify();

// SPMD_REPLAY=0: calls that could be replayed are recorded anew.
bool EnvironmentReplay();

// SPMD_SHORTCUTS=0: PyTorch's own autograd kernels serve every call.
bool EnvironmentShortcuts();

// SPMD_CHECK_PASSES=1: the verifier runs between the passes of the compiler, as in debug builds.
bool EnvironmentCheckPasses();

// SPMD_PRICE_MOVES=0: moves cost nothing in plans for the CPU, so that whatever can be sharded is
// sharded. For tests of rules.
bool EnvironmentFreeMoves();

// SPMD_CACHE_DIR: the directory in which compiled programs are kept; if it is not set,
// $XDG_CACHE_HOME/torch_spmd or ~/.cache/torch_spmd. "" if it is 0 or empty: none are kept.
std::string EnvironmentCacheDirectory();

// SPMD_PROGRAM_MEMORY: the number of MiB that compiled programs may take in memory; 512 if it is
// not set.
int64_t EnvironmentProgramBytes();

// SPMD_CACHE_SIZE: the number of MiB that the files of compiled programs may take; 256 if it is not
// set.
int64_t EnvironmentCacheBytes();

// SPMD_LOG=passes,traffic: what is printed on stderr for each compiled program.
struct Log {
  bool passes = false;   // the time of each pass
  bool traffic = false;  // its collectives
};
// Errors: InvalidArgument for any other word, with the words that exist.
absl::StatusOr<Log> EnvironmentLog();

}  // namespace spmd::runtime
