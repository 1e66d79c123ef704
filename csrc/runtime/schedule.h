// SPDX-License-Identifier: Apache-2.0
// The order in which the tiles of a program are computed.
//
// Devices that share a place take turns in *waves*: some devices continue for as long as they need
// nothing of later waves, then the next ones do. So only the working wave's intermediates are in
// memory, most of them still in the cache. For [data=4], with two devices per wave:
//
//   %1: {data} = call f(%x)                    %1 of 0, 1   %2 of 0, 1   %3 = the sum so far
//   %2: {} unreduced(sum){data} = call g(%1)   %1 of 2, 3   %2 of 2, 3   %3 += theirs
//   %3: {} = all_reduce(%2) {data}             %4
//   %4: {} = call h(%3)
//
// A sum is computed partial sum by partial sum. Each is added as soon as it and those before it
// exist, that is in device order, so the result does not depend on the waves. The sum may also
// compute its partial sums itself, each in its device's turn.
//
// Turns. An item that needs a tile of a later wave waits for the next *level*, which begins when
// all waves have had a turn:
//   level 0: wave 0, 1, 2, 3   level 1: wave 0, …
// The steps of one turn are in program order. A forward and a backward pass are one level, unless
// the backward pass needs something that is known only after all forward passes. Items that cost
// next to nothing (the number of targets on all devices) run at once instead of waiting for their
// wave. Items that depend on inputs only (a gathered parameter) are delayed to their first use, to
// save memory.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "csrc/program/program.h"

namespace spmd::runtime {

struct TileRef {
  program::ValueId value;
  int32_t index;
};

// The work of a step on one tile.
struct WorkItem {
  // The index of the call's item, or of the tile that a move makes; kExchange for the exchange that
  // comes before all of them.
  static constexpr int32_t kExchange = -1;
  int32_t index = 0;
  int32_t part = 0;  // the part of a move
  // The range of the partial sums that are added now; both 0 if nothing is added.
  int32_t begin_term = 0, end_term = 0;
  // Bit k: nothing else needs the k-th tile that the item reads, neither later nor at the same
  // time.
  static constexpr int kMostTaken = 8;
  uint8_t may_take = 0;
  bool may_take_first() const { return (may_take & 1) != 0; }
  // True if the enclosing tiles have no later reader except the scatter that writes this part back.
  bool may_write_through = false;
};

// Items of one step that may run at the same time, and the tiles that are dead after them.
struct Batch {
  int32_t step = 0;
  absl::Span<const WorkItem> items;
  absl::Span<const TileRef> dead;
};

// Thread safety: immutable. A schedule can be moved, since batches point into vectors that move as
// a whole.
struct Schedule {
  std::vector<Batch> batches;  // a topological order
  std::vector<WorkItem> items;
  std::vector<TileRef> dead;
};

// Takes items in program order and puts them into the order of the waves.
class Scheduler {
 public:
  struct Devices {
    int64_t first = 0, last = 0;
  };
  // `tiles` gives by value the number of its tiles, `outlives` whether they outlive the program and
  // never die. A wave has `devices_per_wave` devices. An item that takes at most `negligible` bytes
  // to compute from the inputs does not wait for its wave.
  Scheduler(absl::Span<const int64_t> tiles, absl::Span<const uint8_t> outlives,
            int64_t devices_per_wave, int64_t negligible);

  // Adds an item of a call. The devices of the range `devices` all need the result: the item runs
  // in the turn of the first of their waves that has what it reads. `bytes` is what it reads and
  // writes. `wholes` are the tiles of which the first tile that it reads is a part
  // (csrc/runtime/one_place/write_through.h).
  void AddCall(int32_t step, WorkItem item, absl::Span<const TileRef> reads,
               absl::Span<const TileRef> writes, Devices devices, int64_t bytes,
               absl::Span<const TileRef> wholes = {});
  // Adds a tile of a move. It is made as soon as the tiles in `reads` exist.
  void AddMove(int32_t step, WorkItem item, absl::Span<const TileRef> reads, TileRef written);
  // Adds the exchange of a move between processes, which reads the tiles that this process sends.
  // It belongs to the batch of the tiles that the move makes.
  // Requires: there is one wave.
  void AddExchange(int32_t step, absl::Span<const TileRef> reads);
  // What it takes to compute a partial sum, as in AddCall.
  struct Work {
    Devices devices;
    int64_t bytes = 0;
    int32_t step = -1;  // the step of the call
  };
  struct Term {
    std::vector<TileRef> reads;
    std::optional<Work> work = std::nullopt;  // set if the sum computes it from what it reads
  };
  // Adds a sum. With `as_produced`, each partial sum is added as soon as it exists; otherwise all
  // are added at once.
  void AddSum(int32_t step, WorkItem item, absl::Span<const Term> terms, TileRef written,
              bool as_produced);

  Schedule Finish() &&;

 private:
  // When something exists: in the turn of wave `wave` of level `level`.
  struct Turn {
    int32_t level = 0;
    int32_t wave = 0;
    friend bool operator<(const Turn& a, const Turn& b) {
      return a.level != b.level ? a.level < b.level : a.wave < b.wave;
    }
    friend bool operator==(const Turn& a, const Turn& b) {
      return a.level == b.level && a.wave == b.wave;
    }
  };
  struct Tile {
    Turn turn;
    int32_t at_step = -1;     // the at_step of the entry that made it
    int64_t cost = 0;         // bytes read and written to compute it from the inputs
    bool is_input = true;     // false once an item makes it
    bool from_inputs = true;  // computed from inputs only, and several waves want it
    Turn first_use = kNever;
    int32_t last = -1;    // the last batch that touches it
    int32_t readers = 0;  // in that batch
    bool listed = false;  // it is in the list of dead tiles
  };
  static constexpr Turn kNever{std::numeric_limits<int32_t>::max(), 0};
  struct Entry {
    Turn turn;
    int32_t at_step;  // the place in the turn: its step, or the step after which a sum goes on
    int32_t step;
    WorkItem item;
    int32_t first_wave, last_wave;                            // the waves that want it
    bool may_wait;                                            // it may wait for its first use
    int32_t first_access = 0, end_reads = 0, end_writes = 0;  // indices in accesses_
  };

  int64_t NumberOf(TileRef tile) const { return first_tile_[tile.value] + tile.index; }
  Tile& At(TileRef tile) { return tiles_[NumberOf(tile)]; }
  Turn LatestOf(absl::Span<const TileRef> reads);
  int32_t WaveOf(int64_t device) const { return static_cast<int32_t>(device / devices_per_wave_); }
  Turn TurnFor(Devices devices, Turn ready) const;
  int64_t CostOf(absl::Span<const TileRef> reads);
  void Add(Entry entry, absl::Span<const TileRef> reads, absl::Span<const TileRef> writes,
           int64_t cost);
  void PutOffWhatNeedsInputsOnly();
  std::vector<int32_t> InOrder() const;
  void FindWritesThrough(const std::vector<int32_t>& order, const std::vector<int32_t>& batch_of,
                         Schedule& schedule) const;
  void FindDead(const std::vector<int32_t>& order, const std::vector<int32_t>& batch_of,
                Schedule& schedule);

  const std::vector<uint8_t> outlives_;
  const int64_t devices_per_wave_;
  const int64_t negligible_;
  std::vector<int64_t> first_tile_;  // by value
  std::vector<Tile> tiles_;
  std::vector<Entry> entries_;
  std::vector<TileRef> accesses_;  // for each entry its reads, then its writes
  absl::flat_hash_map<int32_t, std::vector<TileRef>> wholes_;  // by entry
};

}  // namespace spmd::runtime
