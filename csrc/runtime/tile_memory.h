// SPDX-License-Identifier: Apache-2.0
// Memory of tiles on the CPU, kept for the next tile.
//
// Every step makes tensors of the same sizes. Given back to the system in between, their pages are
// mapped, and zeroed, anew each time: 5 % of a step. What programs allocate while they run, and
// what is uploaded for them, therefore comes from here. Blocks are of size classes, four to a
// doubling. Addresses are reserved in units of 16 MiB, as blocks are needed, and a unit has blocks
// of one class only. A table with a byte for every unit that there could be says which class a
// block is of, or that memory is not ours, without a search:
//
//   | 64 KiB class: block block … | not ours | 1 GiB class: block, over 65 units | 64 KiB class: …
//
// Addresses are never given back, pages are: those of free blocks where all together are more than
// one and a half times what was in use at once since the last Trim, and by Trim; what is freed
// between a Trim and the next program therefore goes back at once. Pages that nobody wrote to do
// not count, so that a class wastes addresses only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spmd::runtime {

// Thread safety: all of it may be called from any thread.
class TileMemory {
 public:
  // Stands before PyTorch's CPU allocator from now on. At most once, whoever asks; false where
  // SPMD_KEEP_MEMORY=0 or SPMD_SYNC=1, or where the system does not give 16 MiB of addresses for
  // the table. Where it gives none for blocks, memory comes from PyTorch's allocator.
  static bool Install();

  // While it lives, tensors of 64 KiB to 1 GiB that this thread allocates come from here.
  class Scope {
   public:
    Scope();
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const bool before_;
  };

  // Gives the pages of all free blocks back.
  static void Trim();

  // Bytes of blocks; `kept` are free and have pages, `most_in_use` counts from the last Trim on.
  struct Stats {
    int64_t in_use = 0, most_in_use = 0, kept = 0;
  };
  static Stats GetStats();
};

}  // namespace spmd::runtime
