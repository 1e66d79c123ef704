// SPDX-License-Identifier: Apache-2.0
// Keeps the memory of tiles on the CPU for the next tiles.
//
// Every step makes tensors of the same sizes. If their memory were returned to the system in
// between, their pages would be mapped and zeroed anew each time, which takes 5 % of a step.
// Therefore the memory that programs allocate while they run, and that of uploads, comes from here.
// Blocks have size classes, four per doubling. Addresses are reserved in units of 16 MiB when
// blocks are needed, and a unit has blocks of one class only. A table with a byte for every
// possible unit gives the class of a block, or says that memory is not from here, without a search:
//
//   | 64 KiB class: block block … | not ours | 1 GiB class: block, over 65 units | 64 KiB class: …
//
// Addresses are never returned, but pages are: those of free blocks are returned by Trim, and when
// all blocks together take more than one and a half times the most that was in use at once since
// the last Trim. What is freed between a Trim and the next program is therefore returned at once.
// Pages that nobody wrote to take no memory, so a size class wastes addresses only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spmd::runtime {

// Thread safety: all functions may be called from any thread.
class TileMemory {
 public:
  // Puts itself in front of PyTorch's CPU allocator. Only the first call does so. False if the
  // system does not give 16 MiB of addresses for the table. If it gives no addresses for blocks,
  // memory comes from PyTorch's allocator.
  static bool Install();

  // While a scope lives, tensors of 64 KiB to 1 GiB that this thread allocates come from here.
  class Scope {
   public:
    Scope();
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const bool before_;
  };

  // Returns the pages of all free blocks to the system.
  static void Trim();

  // Bytes of blocks. `kept` counts free blocks that have pages, `most_in_use` is the maximum since
  // the last Trim.
  struct Stats {
    int64_t in_use = 0, most_in_use = 0, kept = 0;
  };
  static Stats GetStats();

  // All that scopes allocate, tensors of other sizes too: bytes and their number now, the largest
  // sum of bytes since the last ResetPeak, and both sums since the start.
  struct Usage {
    int64_t bytes = 0, peak_bytes = 0, tensors = 0, bytes_ever = 0, tensors_ever = 0;
  };
  static Usage GetUsage();
  static void ResetPeak();
};

}  // namespace spmd::runtime
