// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/shard_places.h"

#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

ShardPlaces::Start ShardPlaces::StartAt(bool replayed) {
  SessionLock lock;
  Tape& tape = *lock->tape;
  Start start{.tape = tape.number(),
              .event = tape.event(),
              .slot = static_cast<int64_t>(tape.num_values()),
              .records = tape.num_records(),
              .scalars = tape.scalars().size()};
  if (!replayed || !tape.following() || tape.HasOtherStarts()) return start;
  start.lead = tape.lead_pointer();
  start.call = tape.next_call() - 1;
  return start;
}

void ShardPlaces::Note(const Start& start, const at::Tensor& result, ShardProgramPtr program,
                       JoinedRegionPtr joined) {
  if (start.lead == nullptr || !program->repeatable) return;
  SessionLock lock;
  Tape& tape = *lock->tape;
  if (tape.number() != start.tape || !tape.following() || tape.lead_pointer() != start.lead ||
      tape.HasOtherStarts()) {
    return;
  }
  const Recording& lead = tape.lead();
  const size_t next = tape.next_call();
  if (next <= start.call + 1) return;
  Place place{.recording = start.lead,
              .program = std::move(program),
              .last = lead.calls[next - 1],
              .calls = static_cast<int64_t>(next - start.call - 1),
              .joined = std::move(joined)};
  const TracedCall& last = *place.last;
  if (last.end_event != tape.event() || last.results.size() != 1 ||
      last.results[0].kind != CallResult::Kind::kFresh ||
      !tape.IsHeldBy(*BufferOf(result), last.results[0].value)) {
    return;
  }
  place.all.task = last.task;
  for (size_t k = start.call + 1; k < next; ++k) {
    const TracedCall& call = *lead.calls[k];
    if (call.num_inputs > 0 || call.updates_first || call.binds) return;
    if (call.num_records > 0 && call.task != last.task) return;
  }
  for (int32_t e = start.event; e < tape.event(); ++e) {
    if (lead.events[e].kind == Event::Kind::kInput) return;
  }
  place.all.first_event = start.event;
  place.all.end_event = tape.event();
  place.all.first_slot = static_cast<TapeId>(start.slot);
  place.all.end_slot = static_cast<TapeId>(tape.num_values());
  place.all.num_records = static_cast<int>(tape.num_records() - start.records);
  place.scalars.assign(tape.scalars().begin() + static_cast<int64_t>(start.scalars),
                       tape.scalars().end());
  constexpr size_t kMostPlaces = 256;  // of programs that never repeat
  if (places_.size() >= kMostPlaces) places_.clear();
  places_[{start.lead.get(), start.call}] = std::make_shared<const Place>(std::move(place));
}

std::shared_ptr<const ShardPlaces::Place> ShardPlaces::Find(const Start& start) const {
  if (start.lead == nullptr) return nullptr;
  const auto it = places_.find({start.lead.get(), start.call});
  if (it == places_.end() || it->second->recording.lock() != start.lead) return nullptr;
  return it->second;
}

ShardProgramPtr ShardPlaces::At(const Start& start) const {
  const std::shared_ptr<const Place> place = Find(start);
  return place == nullptr ? nullptr : place->program;
}

std::optional<ShardPlaces::Skipped> ShardPlaces::Skip(const Start& start,
                                                      const ShardProgramPtr& program,
                                                      const torch::autograd::edge_list& edges) {
  const std::shared_ptr<const Place> found = Find(start);
  if (found == nullptr || found->program != program) return std::nullopt;
  const Place& place = *found;
  if (place.joined != nullptr && !LeadAlike(*place.joined, edges)) return std::nullopt;
  SessionLock lock;
  Tape& tape = *lock->tape;
  if (tape.number() != start.tape || !tape.following() || tape.lead_pointer() != start.lead ||
      tape.event() != start.event) {
    return std::nullopt;
  }
  const int64_t graph_task = GraphTask();
  if (tape.TaskNumber(graph_task) != place.all.task) return std::nullopt;
  lock->micro_steps.Note(graph_task, /*updates_first=*/false);
  lock->diagnostics.statistics.records += place.all.num_records;
  lock->diagnostics.statistics.replayed += place.calls;
  for (const c10::Scalar& scalar : place.scalars) tape.AddScalar(scalar);
  tape.Skip(place.all, {});
  tape.next_call() = start.call + 1 + static_cast<size_t>(place.calls);
  Skipped skipped{MakeFresh(tape, place.last->results[0]), place.joined};
  EndPassInCut(*lock);
  return skipped;
}

}  // namespace spmd::trace
