// SPDX-License-Identifier: Apache-2.0
// Decides when a loaded program's tiles are computed, and when its donated arguments are taken.
#include <algorithm>
#include <utility>

#include "csrc/program/def_use.h"
#include "csrc/program/terms.h"
#include "csrc/rules/op_facts.h"
#include "csrc/runtime/executor_impl.h"
#include "csrc/runtime/one_place/waves.h"
#include "csrc/util/status.h"

namespace spmd::runtime {

using program::ValueId;

namespace {

// Keeps one bound for each input, the tightest.
void AddBound(const IndexBound& bound, std::vector<IndexBound>& bounds) {
  for (IndexBound& known : bounds) {
    if (known.index != bound.index) continue;
    known.size = std::min(known.size, bound.size);
    return;
  }
  bounds.push_back(bound);
}

}  // namespace

void LoadedProgram::Impl::MakeSchedule() {
  int64_t devices = 1;
  for (const GridPtr& grid : program.grids) {
    for (int64_t id : grid->device_ids()) devices = std::max(devices, id + 1);
  }
  const auto in_waves_of = [this](int64_t wave) { return ScheduleInWavesOf(wave); };
  if (held.has_one_tile() || !held.shares_cpu || options.turns == Options::Turns::kNever) {
    schedule = in_waves_of(devices);
    return;
  }
  const int64_t as_one = held.coalesced ? devices / program.grids[0]->SizeOfMask(held.kept) : 1;
  const bool where_it_pays = !held.coalesced && options.turns != Options::Turns::kAlways;
  schedule = ScheduleInTurns(devices, as_one, where_it_pays, in_waves_of,
                             [this](const Schedule& order) { return PeakBytes(order); });
}

Schedule LoadedProgram::Impl::ScheduleInWavesOf(int64_t devices) const {
  // An item that takes at most this part of the program's work does not wait for its wave.
  constexpr int64_t kNegligiblePart = int64_t{1} << 14;
  int64_t bytes = 0;
  for (const Step& step : steps) {
    if (const auto* call = std::get_if<CallStep>(&step)) bytes += call->bytes();
    if (const auto* move = std::get_if<MoveStep>(&step)) {
      for (const MoveStep::Part& part : move->parts) {
        if (part.products != nullptr) bytes += part.products->bytes();
      }
    }
  }
  std::vector<int64_t> tiles;
  for (const PlacementPtr& place : placements) tiles.push_back(place->count());
  const program::DefUse facts(program);
  std::vector<uint8_t> outlives;  // by value
  for (size_t id = 0; id < placements.size(); ++id) {
    outlives.push_back(facts.outlives(static_cast<ValueId>(id)));
  }
  Scheduler scheduler(tiles, outlives, devices, bytes / kNegligiblePart);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (const auto* call = std::get_if<CallStep>(&steps[i])) {
      AddToSchedule(static_cast<int>(i), *call, scheduler);
    } else if (const auto* move = std::get_if<MoveStep>(&steps[i])) {
      AddToSchedule(static_cast<int>(i), *move, scheduler);
    }
  }
  return std::move(scheduler).Finish();
}

// The bytes of all tiles at the peak. An item that is the last reader of the first tile that it
// reads takes over its memory, as views and in-place ops do.
int64_t LoadedProgram::Impl::PeakBytes(const Schedule& order) const {
  std::vector<int64_t> tile_bytes;  // by value
  for (size_t id = 0; id < placements.size(); ++id) {
    const Placement& place = *placements[id];
    const DType type = program::HeldType(program.values[id].type.dtype, place.sharding());
    tile_bytes.push_back(place.total_elements() * ByteSize(type) /
                         std::max<int64_t>(place.count(), 1));
  }
  int64_t alive = 0, peak = 0;
  for (const program::Input& input : program.inputs) {
    alive += tile_bytes[input.value] * placements[input.value]->count();
  }
  std::vector<TileRef> reads, writes;
  for (const Batch& batch : order.batches) {
    int64_t taken = 0;
    for (const WorkItem& item : batch.items) {
      reads.clear();
      writes.clear();
      if (const auto* call = std::get_if<CallStep>(&steps[batch.step])) {
        call->AppendReads(item.index, reads);
        call->AppendWrites(item.index, writes);
      } else {
        const MoveStep::Part& part = std::get<MoveStep>(steps[batch.step]).parts[item.part];
        if (item.begin_term > 0 || item.index == WorkItem::kExchange) continue;
        if (part.products == nullptr) reads.push_back({part.from, 0});
        const int64_t made = part.products == nullptr ? 1 : part.products->NumMadeWith(item.index);
        writes.resize(made, {part.to, item.index});
      }
      for (const TileRef& tile : writes) alive += tile_bytes[tile.value];
      if (item.may_take_first() && !writes.empty() && !reads.empty()) {
        taken += std::min(tile_bytes[reads[0].value], tile_bytes[writes[0].value]);
      }
    }
    peak = std::max(peak, alive - taken);
    for (const TileRef& tile : batch.dead) alive -= tile_bytes[tile.value];
  }
  return peak;
}

void LoadedProgram::Impl::AddToSchedule(int step, const CallStep& call,
                                        Scheduler& scheduler) const {
  std::vector<TileRef> reads, writes, wholes;
  for (int64_t i = 0; i < call.num_items(); ++i) {
    reads.clear();
    writes.clear();
    wholes.clear();
    call.AppendReads(i, reads);
    call.AppendWrites(i, writes);
    call.AppendWholes(i, wholes);
    // A whole with fewer tiles has no tile with this number.
    wholes.erase(std::remove_if(wholes.begin(), wholes.end(),
                                [&](const TileRef& whole) {
                                  return whole.index >= placements[whole.value]->count();
                                }),
                 wholes.end());
    WorkItem item;
    item.index = static_cast<int32_t>(i);
    scheduler.AddCall(step, item, reads, writes, call.DevicesOf(i),
                      call.bytes() / std::max<int64_t>(call.num_items(), 1), wholes);
  }
}

void LoadedProgram::Impl::AddToSchedule(int step, const MoveStep& move,
                                        Scheduler& scheduler) const {
  std::vector<Scheduler::Term> terms;
  if (move.exchanges) {
    std::vector<TileRef> sent;
    for (const MoveStep::Part& part : move.parts) {
      const Transfer& transfer = part.plan->transfer;
      const auto add = [&](const std::vector<Transfer::Packet>& packets) {
        for (const Transfer::Packet& packet : packets) {
          for (const int32_t source : packet.sources) sent.push_back({part.from, source});
        }
      };
      std::for_each(transfer.send.begin(), transfer.send.end(), add);
      add(transfer.receive[backend.peers()->rank()]);
      for (const Transfer::Sum& sum : transfer.sums) {
        for (const Transfer::Sum::Term& term : sum.terms) {
          if (term.process != backend.peers()->rank()) continue;
          for (const int32_t source : term.sources) sent.push_back({part.from, source});
        }
      }
    }
    scheduler.AddExchange(step, sent);
  }
  for (size_t p = 0; p < move.parts.size(); ++p) {
    const MoveStep::Part& part = move.parts[p];
    const DType dtype = program.values[part.to].type.dtype;
    for (size_t i = 0; i < part.plan->tiles.size(); ++i) {
      WorkItem item;
      item.index = static_cast<int32_t>(i);
      item.part = static_cast<int32_t>(p);
      const TileRef made{part.to, item.index};
      if (part.products != nullptr) {
        const int32_t maker = part.products->MakerOf(item.index);
        if (maker == item.index) {
          scheduler.AddSum(step, item, part.products->TermsOf(maker), made, true);
        } else {
          scheduler.AddMove(step, item, {{part.to, maker}}, made);
        }
        continue;
      }
      const TileMove& tile = part.plan->tiles[i];
      if (tile.action == TileMove::Action::kElsewhere) continue;
      terms.clear();
      for (const std::vector<Piece>& pieces : tile.terms) {
        std::vector<TileRef>& reads = terms.emplace_back().reads;
        for (const Piece& piece : pieces) {
          if (piece.source >= 0 && piece.source < part.plan->num_sources) {
            reads.push_back({part.from, piece.source});
          }
        }
      }
      if (tile.action == TileMove::Action::kReduce) {
        scheduler.AddSum(step, item, terms, made,
                         options.one_place && !RoundsOnce(part.plan->kind, dtype));
      } else {
        scheduler.AddMove(step, item, terms.empty() ? std::vector<TileRef>() : terms[0].reads,
                          made);
      }
    }
  }
}

// The commit comes after all batches that can fail, and not earlier than the first batch that
// overwrites or drops a donated input. For the early commit, only batches count that can fail for
// other reasons than an index out of range.
void LoadedProgram::Impl::FindCommit() {
  const program::DefUse facts(program);
  const auto is_given = [&](ValueId id) {
    return facts.input(id) >= 0 && program.inputs[facts.input(id)].donated;
  };
  size_t fallible = 0, unbounded = 0, first_write = schedule.batches.size();
  for (size_t b = 0; b < schedule.batches.size(); ++b) {
    const Batch& batch = schedule.batches[b];
    bool writes = std::any_of(batch.dead.begin(), batch.dead.end(),
                              [&](const TileRef& tile) { return is_given(tile.value); });
    if (const auto* call = std::get_if<CallStep>(&steps[batch.step])) {
      const program::Instruction& instruction = program.instructions[batch.step];
      if (rules::MayFail(*call->binding().facts,
                         program.values[instruction.results[0]].type.dtype)) {
        fallible = b + 1;
        const auto bound = FindIndexBound(program, instruction, facts);
        if (bound.has_value()) {
          AddBound(*bound, bounds);
        } else {
          unbounded = b + 1;
        }
      }
      const absl::Span<const ValueId> wholes = call->wholes();
      writes = writes || (std::any_of(wholes.begin(), wholes.end(), is_given) &&
                          std::any_of(batch.items.begin(), batch.items.end(),
                                      [](const WorkItem& item) { return item.may_write_through; }));
    }
    if (writes) first_write = std::min(first_write, b);
  }
  commit = std::max(fallible, first_write);
  early_commit = std::max(unbounded, first_write);
}

// The commit comes before the step `at`: after the last one that may fail on values, whether or not
// this process has a part in it, and not earlier than the first that drops or overwrites a donated
// input. As long as none is, waiting costs nothing, and a process that runs out of memory until
// then fails as an op does.
void LoadedProgram::Impl::FindVotes() {
  const program::DefUse facts(program);
  int end = 0, at = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!std::holds_alternative<std::monostate>(steps[i])) end = static_cast<int>(i) + 1;
    const auto* call = std::get_if<CallStep>(&steps[i]);
    if (call == nullptr) continue;
    const program::Instruction& instruction = program.instructions[i];
    const DType dtype = program.values[instruction.results[0]].type.dtype;
    if (rules::MayFail(*call->binding().facts, dtype)) at = static_cast<int>(i) + 1;
  }
  int first_write = end;
  for (const program::Input& input : program.inputs) {
    const int last = facts.last_user(input.value);
    if (input.donated && last >= 0) first_write = std::min(first_write, last);
  }
  at = std::max(at, first_write);
  votes = at >= end ? Votes::kBeforeCommit : at > 0 ? Votes::kTwice : Votes::kAfterCommit;
  const auto is_before = [&](const Batch& batch) { return batch.step < at; };
  // With one wave, the batches are in program order.
  commit = std::partition_point(schedule.batches.begin(), schedule.batches.end(), is_before) -
           schedule.batches.begin();
  early_commit = commit;
  for (size_t b = 1; b < schedule.batches.size(); ++b) {
    SPMD_CHECK(schedule.batches[b - 1].step < schedule.batches[b].step,
               "processes would exchange in another order");
  }
}

// While an exchange goes on, nothing else touches the values that it reads and makes, and no other
// exchange begins. So at most the operands of one exchange are held longer than they are needed.
void LoadedProgram::Impl::FindOverlaps() {
  if (backend.overlap_from() < 0) return;
  std::vector<uint8_t> taken(placements.size());  // by value
  const auto take = [&](const MoveStep& move, bool takes) {
    for (const MoveStep::Part& part : move.parts) taken[part.from] = taken[part.to] = takes ? 1 : 0;
  };
  const auto is_taken = [&](const TileRef& tile) { return taken[tile.value] != 0; };
  std::vector<TileRef> tiles;
  const auto waits = [&](const Batch& batch) {
    tiles.clear();
    if (const auto* move = std::get_if<MoveStep>(&steps[batch.step])) {
      if (move->exchanges) return true;
      for (const MoveStep::Part& part : move->parts) {
        tiles.push_back({part.from, 0});
        tiles.push_back({part.to, 0});
      }
    } else if (const auto* call = std::get_if<CallStep>(&steps[batch.step])) {
      for (const WorkItem& item : batch.items) {
        call->AppendReads(item.index, tiles);
        call->AppendWrites(item.index, tiles);
      }
    }
    return std::any_of(tiles.begin(), tiles.end(), is_taken);
  };
  ends_before.assign(schedule.batches.size(), 0);
  for (size_t b = 0; b < schedule.batches.size(); ++b) {
    const auto* move = std::get_if<MoveStep>(&steps[schedule.batches[b].step]);
    if (move == nullptr || !move->exchanges) continue;
    int64_t bytes = 0;
    for (const MoveStep::Part& part : move->parts) {
      const program::Value& from = program.values[part.from];
      bytes += part.plan->transfer.num_sent(backend.peers()->rank()) *
               ByteSize(program::HeldType(from.type.dtype, from.sharding));
    }
    if (bytes < backend.overlap_from()) continue;
    take(*move, true);
    bool computes = false;
    size_t end = b + 1;
    for (; end < schedule.batches.size() && end != commit; ++end) {
      const Batch& batch = schedule.batches[end];
      if (waits(batch)) break;
      computes = computes || std::holds_alternative<CallStep>(steps[batch.step]);
    }
    if (computes) ends_before[b] = end;
    take(*move, false);
  }
}

}  // namespace spmd::runtime
