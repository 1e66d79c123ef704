// SPDX-License-Identifier: Apache-2.0
// The order in which the tiles of a program are computed.
//
// Devices that share a place take turns in *waves*: some devices go on for as long as they need
// nothing of later waves, then the next do. So only the working wave's intermediates are alive,
// most of them still in the cache. Of [data=4], two devices at a time:
//
//   %1: {data} = call f(%x)                    %1 of 0, 1   %2 of 0, 1   %3 = the sum so far
//   %2: {} unreduced(sum){data} = call g(%1)   %1 of 2, 3   %2 of 2, 3   %3 += theirs
//   %3: {} = all_reduce(%2) {data}             %4
//   %4: {} = call h(%3)
//
// A sum is made term by term, each as soon as it and those before it are there: in device order, so
// that the result does not depend on the waves. Terms may also be computed by the sum itself, each
// in its device's turn.
//
// Turns. What needs a tile of a later wave waits for the next *level*: all waves have had a turn.
//   level 0: wave 0, 1, 2, 3   level 1: wave 0, …   and the steps of a turn in the program's order
// A forward and a backward pass are one level while nothing that the backward pass needs is known
// only after all forward passes. What costs next to nothing (the number of targets, of all devices)
// therefore does not wait for its wave; what needs inputs only and would lie about until somebody
// uses it (a gathered parameter) waits for its first use.
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

// A tile of a step's work.
struct WorkItem {
  int32_t index = 0;  // of the call's items, or the index of the tile that a move makes
  int32_t part = 0;   // of a move
  // The terms of a sum that are added now; both 0 where there is nothing to add.
  int32_t begin_term = 0, end_term = 0;
  // Bit k: nothing else needs the k-th tile that it reads, neither later nor at the same time.
  static constexpr int kMostTaken = 8;
  uint8_t may_take = 0;
  bool may_take_first() const { return (may_take & 1) != 0; }
  // Of the tiles that this one is a part of, nothing but what puts the part back reads any from now
  // on.
  bool may_write_through = false;
};

// Items of one step that may run at the same time, and the tiles that are dead after them.
struct Batch {
  int32_t step = 0;
  absl::Span<const WorkItem> items;
  absl::Span<const TileRef> dead;
};

// Thread safety: immutable. Movable: batches point into vectors that move as a whole.
struct Schedule {
  std::vector<Batch> batches;  // a topological order
  std::vector<WorkItem> items;
  std::vector<TileRef> dead;
};

// Takes items in the order of the program and puts them into the order of the waves.
class Scheduler {
 public:
  struct Devices {
    int64_t first = 0, last = 0;
  };
  // By value: how many tiles it has, and whether they outlive the program and never die. Waves are
  // of `devices_per_wave`; what takes at most `negligible` bytes to compute from the inputs does
  // not wait for its wave.
  Scheduler(absl::Span<const int64_t> tiles, absl::Span<const uint8_t> outlives,
            int64_t devices_per_wave, int64_t negligible);

  // A call's item on the devices from first to last, which all want the result: it goes with the
  // first wave among theirs that has what it reads. `bytes`: what it reads and writes. `wholes`:
  // tiles of which the first that it reads is a part (csrc/runtime/write_through.h).
  void AddCall(int32_t step, WorkItem item, absl::Span<const TileRef> reads,
               absl::Span<const TileRef> writes, Devices devices, int64_t bytes,
               absl::Span<const TileRef> wholes = {});
  // Another tile of a move, which is made as soon as the tiles it is made of are there.
  void AddMove(int32_t step, WorkItem item, absl::Span<const TileRef> reads, TileRef written);
  // What computing something takes: as AddCall is told.
  struct Work {
    Devices devices;
    int64_t bytes = 0;
    int32_t step = -1;  // the call's own
  };
  struct Term {
    std::vector<TileRef> reads;
    std::optional<Work> work = std::nullopt;  // where the sum computes it of what it reads
  };
  // A sum: where `as_produced`, each term is added when it is there.
  void AddSum(int32_t step, WorkItem item, absl::Span<const Term> terms, TileRef written,
              bool as_produced);

  Schedule Finish() &&;

 private:
  // When something is there: after `level` meetings of all waves, in this wave's turn.
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
    int32_t at_step = -1;     // of the entry that made it
    int64_t cost = 0;         // bytes that were read and written for it, from the inputs on
    bool is_input = true;     // until an item makes it
    bool from_inputs = true;  // nothing else was read for it, and several waves want it
    Turn first_use = kNever;
    int32_t last = -1;    // the batch that touches it last
    int32_t readers = 0;  // in that batch
    bool listed = false;  // among the dead
  };
  static constexpr Turn kNever{std::numeric_limits<int32_t>::max(), 0};
  struct Entry {
    Turn turn;
    int32_t at_step;  // within the turn: the step, or that behind which a sum goes on
    int32_t step;
    WorkItem item;
    int32_t first_wave, last_wave;                            // that want it
    bool may_wait;                                            // for its first use
    int32_t first_access = 0, end_reads = 0, end_writes = 0;  // into accesses_
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
  std::vector<TileRef> accesses_;  // reads, then writes, of one entry after another
  absl::flat_hash_map<int32_t, std::vector<TileRef>> wholes_;  // by entry
};

}  // namespace spmd::runtime
