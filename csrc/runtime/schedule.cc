// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace spmd::runtime {

Scheduler::Scheduler(absl::Span<const int64_t> tiles, absl::Span<const uint8_t> outlives,
                     int64_t devices_per_wave, int64_t negligible)
    : outlives_(outlives.begin(), outlives.end()),
      devices_per_wave_(devices_per_wave),
      negligible_(negligible) {
  int64_t all = 0;
  for (int64_t count : tiles) {
    first_tile_.push_back(all);
    all += count;
  }
  tiles_.resize(all);
}

Scheduler::Turn Scheduler::LatestOf(absl::Span<const TileRef> reads) {
  Turn latest;
  for (const TileRef& tile : reads) latest = std::max(latest, At(tile).turn);
  return latest;
}

// The cost counts twice what two tiles have in common; it can only be too high, so that fewer items
// are negligible.
int64_t Scheduler::CostOf(absl::Span<const TileRef> reads) {
  int64_t cost = 0;
  for (const TileRef& tile : reads) cost += At(tile).cost;
  return std::min(cost, negligible_ + 1);
}

// The turn of the first of these devices' waves that comes at or after `ready`.
Scheduler::Turn Scheduler::TurnFor(Devices devices, Turn ready) const {
  const int32_t first = WaveOf(devices.first);
  if (ready.wave > WaveOf(devices.last)) return {ready.level + 1, first};
  return {ready.level, std::max(ready.wave, first)};
}

void Scheduler::AddCall(int32_t step, WorkItem item, absl::Span<const TileRef> reads,
                        absl::Span<const TileRef> writes, Devices devices, int64_t bytes,
                        absl::Span<const TileRef> wholes) {
  const int64_t cost = CostOf(reads) + bytes;
  const Turn ready = LatestOf(reads);
  const Turn turn = cost > negligible_ ? TurnFor(devices, ready) : ready;
  if (!wholes.empty()) {
    wholes_[static_cast<int32_t>(entries_.size())].assign(wholes.begin(), wholes.end());
  }
  Add({turn, step, step, item, WaveOf(devices.first), WaveOf(devices.last), true}, reads, writes,
      cost);
}

void Scheduler::AddMove(int32_t step, WorkItem item, absl::Span<const TileRef> reads,
                        TileRef written) {
  // Any wave may need the tile.
  constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
  Add({LatestOf(reads), step, step, item, 0, kAny, true}, reads, {&written, 1}, CostOf(reads));
}

void Scheduler::AddExchange(int32_t step, absl::Span<const TileRef> reads) {
  WorkItem item;
  item.index = WorkItem::kExchange;
  Add({LatestOf(reads), step, step, item, 0, 0, false}, reads, {}, 0);
}

void Scheduler::AddSum(int32_t step, WorkItem item, absl::Span<const Term> terms, TileRef written,
                       bool as_produced) {
  std::vector<TileRef> reads;
  Turn turn;
  int64_t cost = 0;
  int32_t computed_at = -1;
  const auto add = [&](int32_t end) {
    item.end_term = end;
    // The sum comes after the step that made the last of the terms, because a merged collective
    // comes after everything that it moves.
    int32_t at_step = as_produced ? computed_at : step;
    for (const TileRef& tile : reads) at_step = std::max(at_step, At(tile).at_step);
    Add({turn, at_step, step, item, turn.wave, turn.wave, false}, reads, {&written, 1}, cost);
    item.begin_term = end;
    reads.clear();
  };
  for (size_t k = 0; k < terms.size(); ++k) {
    const Term& term = terms[k];
    int64_t own_cost = CostOf(term.reads);
    Turn ready = LatestOf(term.reads);
    if (term.work.has_value()) {
      own_cost += term.work->bytes;
      if (own_cost > negligible_) ready = TurnFor(term.work->devices, ready);
      computed_at = std::max(computed_at, term.work->step);
    }
    ready = std::max(turn, ready);
    if (as_produced && k > 0 && !(ready == turn)) add(static_cast<int32_t>(k));
    turn = ready;
    cost = std::min(cost + own_cost, negligible_ + 1);
    reads.insert(reads.end(), term.reads.begin(), term.reads.end());
  }
  add(static_cast<int32_t>(terms.size()));
}

void Scheduler::Add(Entry entry, absl::Span<const TileRef> reads, absl::Span<const TileRef> writes,
                    int64_t cost) {
  bool from_inputs = entry.may_wait, direct = entry.may_wait;
  for (const TileRef& tile : reads) {
    from_inputs = from_inputs && At(tile).from_inputs;
    direct = direct && At(tile).is_input;
  }
  from_inputs = from_inputs && entry.first_wave < entry.last_wave;
  entry.may_wait = direct || from_inputs;
  entry.first_access = static_cast<int32_t>(accesses_.size());
  accesses_.insert(accesses_.end(), reads.begin(), reads.end());
  entry.end_reads = static_cast<int32_t>(accesses_.size());
  accesses_.insert(accesses_.end(), writes.begin(), writes.end());
  entry.end_writes = static_cast<int32_t>(accesses_.size());
  for (const TileRef& ref : writes) {
    Tile& tile = At(ref);
    tile.turn = entry.turn;
    tile.at_step = entry.at_step;
    tile.cost = cost;
    tile.is_input = false;
    tile.from_inputs = from_inputs;
  }
  entries_.push_back(entry);
}

// Delays entries that may wait to a turn of a wave that wants them, at the latest the turn of their
// first use. Consumers are visited first, so that chains are delayed together.
void Scheduler::PutOffWhatNeedsInputsOnly() {
  for (size_t e = entries_.size(); e-- > 0;) {
    Entry& entry = entries_[e];
    if (entry.may_wait) {
      Turn use = kNever;
      for (int32_t a = entry.end_reads; a < entry.end_writes; ++a) {
        use = std::min(use, At(accesses_[a]).first_use);
      }
      if (!(use == kNever)) {
        if (use.wave < entry.first_wave) use = {use.level - 1, entry.last_wave};
        use.wave = std::min(use.wave, entry.last_wave);
        entry.turn = std::max(entry.turn, use);
      }
    }
    for (int32_t a = entry.first_access; a < entry.end_reads; ++a) {
      Tile& tile = At(accesses_[a]);
      tile.first_use = std::min(tile.first_use, entry.turn);
    }
  }
}

std::vector<int32_t> Scheduler::InOrder() const {
  std::vector<int32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const Entry &x = entries_[a], &y = entries_[b];
    if (!(x.turn == y.turn)) return x.turn < y.turn;
    return x.at_step < y.at_step;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::stable_sort(order.begin(), order.end(), before);
  }
  return order;
}

void Scheduler::FindWritesThrough(const std::vector<int32_t>& order,
                                  const std::vector<int32_t>& batch_of, Schedule& schedule) const {
  if (wholes_.empty()) return;
  absl::flat_hash_map<int64_t, std::vector<int32_t>> accessed;  // by tile number: the batches
  for (const auto& [entry, wholes] : wholes_) {
    for (const TileRef& tile : wholes) accessed[NumberOf(tile)];
  }
  for (size_t n = 0; n < order.size(); ++n) {
    const Entry& entry = entries_[order[n]];
    for (int32_t a = entry.first_access; a < entry.end_writes; ++a) {
      const auto found = accessed.find(NumberOf(accesses_[a]));
      if (found != accessed.end()) found->second.push_back(batch_of[n]);
    }
  }
  for (size_t n = 0; n < order.size(); ++n) {
    const auto found = wholes_.find(order[n]);
    if (found == wholes_.end()) continue;
    schedule.items[n].may_write_through =
        std::all_of(found->second.begin(), found->second.end(), [&](const TileRef& tile) {
          const std::vector<int32_t>& batches = accessed[NumberOf(tile)];
          return std::count_if(batches.begin(), batches.end(),
                               [&](int32_t b) { return b >= batch_of[n]; }) == 1;
        });
  }
}

// A tile dies with the last batch that touches it.
void Scheduler::FindDead(const std::vector<int32_t>& order, const std::vector<int32_t>& batch_of,
                         Schedule& schedule) {
  for (size_t n = 0; n < order.size(); ++n) {
    const Entry& entry = entries_[order[n]];
    for (int32_t a = entry.first_access; a < entry.end_writes; ++a) {
      Tile& tile = At(accesses_[a]);
      if (tile.last != batch_of[n]) tile.readers = 0;
      tile.last = batch_of[n];
      tile.readers += a < entry.end_reads;
    }
  }
  std::vector<int32_t> ends(schedule.batches.size());
  for (size_t n = 0; n < order.size(); ++n) {
    const Entry& entry = entries_[order[n]];
    for (int32_t a = entry.first_access; a < entry.end_writes; ++a) {
      Tile& tile = At(accesses_[a]);
      if (tile.last != batch_of[n] || outlives_[accesses_[a].value]) continue;
      const int32_t k = a - entry.first_access;
      if (a < entry.end_reads && k < WorkItem::kMostTaken && tile.readers == 1) {
        schedule.items[n].may_take |= static_cast<uint8_t>(1 << k);
      }
      if (!std::exchange(tile.listed, true)) schedule.dead.push_back(accesses_[a]);
    }
    ends[batch_of[n]] = static_cast<int32_t>(schedule.dead.size());
  }
  int32_t begin = 0;
  for (size_t b = 0; b < schedule.batches.size(); ++b) {
    schedule.batches[b].dead = {schedule.dead.data() + begin, static_cast<size_t>(ends[b] - begin)};
    begin = ends[b];
  }
}

Schedule Scheduler::Finish() && {
  Schedule schedule;
  PutOffWhatNeedsInputsOnly();
  const std::vector<int32_t> order = InOrder();
  std::vector<int32_t> batch_of, begins;
  for (size_t n = 0; n < order.size(); ++n) {
    const Entry& entry = entries_[order[n]];
    const Entry* last = n == 0 ? nullptr : &entries_[order[n - 1]];
    const bool same = last != nullptr && last->turn == entry.turn &&
                      last->at_step == entry.at_step && last->step == entry.step;
    if (!same) {
      schedule.batches.push_back({entry.step, {}, {}});
      begins.push_back(static_cast<int32_t>(n));
    }
    batch_of.push_back(static_cast<int32_t>(schedule.batches.size()) - 1);
    schedule.items.push_back(entry.item);
  }
  begins.push_back(static_cast<int32_t>(order.size()));
  for (size_t b = 0; b < schedule.batches.size(); ++b) {
    schedule.batches[b].items = {schedule.items.data() + begins[b],
                                 static_cast<size_t>(begins[b + 1] - begins[b])};
  }
  FindWritesThrough(order, batch_of, schedule);
  FindDead(order, batch_of, schedule);
  return schedule;
}

}  // namespace spmd::runtime
