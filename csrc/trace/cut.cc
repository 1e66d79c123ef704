// SPDX-License-Identifier: Apache-2.0
// A cut makes a program of what is pending and runs it; Buffers get its results.
#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/trace/compile.h"
#include "csrc/trace/lower.h"
#include "csrc/trace/marks.h"
#include "csrc/trace/recover.h"
#include "csrc/trace/session_state.h"
#include "csrc/trace/starts.h"
#include "csrc/trace/verify_run.h"
#include "csrc/util/prefetch.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

struct Live {
  std::vector<OutputSpec> outputs;
  std::vector<absl::Status> lost;  // by value; empty where none is
  bool IsLost(TapeId id) const { return !lost.empty() && !lost[id].ok(); }
};

constexpr int kNoTask = -1;

// Calls visit(buffer, before) for the Buffers that hold a value of the tape.
template <typename Visit>
void ForEachBuffer(const Tape& tape, Visit&& visit) {
  tape.bindings().ForEach([&](Buffer& buffer, TapeId before) {
    const ValuePtr& value = buffer.value();
    if (value != nullptr && value->tape == tape.number()) visit(buffer, before);
  });
}

// True if the mark changed since the tape began, so that the layout of the input is not the
// Buffer's any more.
bool IsMarkedAnew(const Tape& tape, const Buffer& buffer, TapeId before) {
  const MarkPtr& mark = tape.inputs()[tape.origin(before).input].mark;
  return mark != buffer.mark && mark != nullptr && !SameMark(mark, buffer.mark);
}

// True if the Buffer may take another form. A mark of it, or of its parts, refers to the present
// form.
bool MayTakeForm(const Buffer& buffer) {
  return buffer.mark == nullptr && NotesOf(buffer) == nullptr;
}

// Finds the values that some Buffer still holds, in order of binding, each once; their Value
// objects are made here. Results of the autograd task `ended` are gradients to which the next
// micro-step adds.
// Requires: `tape` is the session's tape.
Live FindLive(const Tape& tape, int ended = kNoTask) {
  Live live;
  std::vector<int> output_of(tape.num_values(), -1);
  std::vector<bool> claimed(tape.num_values(), false);
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId before) {
    if (!buffer.pending()) return;
    const TapeId id = buffer.value()->id;
    int& k = output_of[id];
    if (k < 0) {
      k = static_cast<int>(live.outputs.size());
      const int record = tape.origin(id).record;
      live.outputs.push_back(
          {id, kNoId, ended != kNoTask && record >= 0 && tape.records()[record].task == ended,
           /*may_be_apart=*/true});
    }
    if (!MayTakeForm(buffer)) live.outputs[k].may_be_apart = false;
    // The input that it replaces, which has the same type and is replaced once.
    if (live.outputs[k].becomes == kNoId && before != kNoId &&
        tape.type(before) == buffer.value()->type && !IsMarkedAnew(tape, buffer, before)) {
      if (!claimed[before]) live.outputs[k].becomes = before;
      claimed[before] = true;
    }
  });
  return live;
}

// By value, the failure by which it is lost because an input is lost; empty if no input is.
// `status_of` gives the status of an input.
template <typename StatusOf>
std::vector<absl::Status> LostValues(const Tape& tape, StatusOf&& status_of) {
  std::vector<absl::Status> lost;
  for (const TapeInput& input : tape.inputs()) {
    const absl::Status& poison = status_of(*tape.value(input.id));
    if (poison.ok()) continue;
    lost.resize(tape.num_values());
    lost[input.id] = poison;
  }
  if (lost.empty()) return lost;
  for (const Record& record : tape.records()) {
    for (const TapeId operand : record.operands) {
      if (operand == kNoId || lost[operand].ok()) continue;
      for (int k = 0; k < record.num_results; ++k) lost[record.first_result + k] = lost[operand];
      break;
    }
  }
  return lost;
}

// True if both layouts give the same boxes to the same devices, in grids whose sub-axes may differ:
// [x=6] is 2*3 alone, and 3*2 together with a mesh [a=3, b=2].
bool SameBoxes(const Layout& a, const Layout& b) {
  if (a.sharding().IsUnreduced() || b.sharding().IsUnreduced()) return false;
  if (a.dims() != b.dims() || a.num_tiles() != b.num_tiles()) return false;
  if (a.grid()->device_ids() != b.grid()->device_ids()) return false;
  for (int64_t p = 0; p < a.grid()->num_devices(); ++p) {
    if (a.BoxAt(p) != b.BoxAt(p)) return false;
  }
  return true;
}

bool SameButForTerms(const Layout& a, const Layout& b) {
  if (a == b || SameBoxes(a, b)) return true;
  if (!a.sharding().IsUnreduced() && !b.sharding().IsUnreduced()) return false;
  return Layout(a.grid(), a.sharding().Reduced(), a.dims()) ==
         Layout(b.grid(), b.sharding().Reduced(), b.dims());
}

// True if the program's results include every live value, and settled Buffers keep their layouts. A
// gradient may be unreduced in one of the layouts and reduced in the other.
bool Fits(const CachedProgram& cached, const Tape& tape, const Live& live) {
  const program::Program& program = cached.program->program();
  for (size_t k = 0; k < cached.inputs.size(); ++k) {
    const TapeInput& input = tape.inputs()[cached.inputs[k]];
    if (live.IsLost(input.id)) return false;
    const bool terms = input.settled != nullptr && input.settled->sharding().IsUnreduced();
    const program::ValueId taken = program.inputs[k].value;
    if (terms != program.values[taken].sharding.IsUnreduced()) return false;
  }
  auto next = cached.outputs.begin();  // they usually come in the same order
  for (const OutputSpec& wanted : live.outputs) {
    const auto is_wanted = [&](const OutputSpec& o) { return o.value == wanted.value; };
    auto it = std::find_if(next, cached.outputs.end(), is_wanted);
    if (it == cached.outputs.end()) {
      it = std::find_if(cached.outputs.begin(), next, is_wanted);
      if (it == next) return false;
    }
    next = it + 1;
    if (!it->apart.empty() && !wanted.may_be_apart) return false;
    if (wanted.becomes == kNoId || !it->apart.empty()) continue;
    const LayoutPtr& settled = tape.inputs()[tape.origin(wanted.becomes).input].settled;
    if (settled == nullptr) continue;
    const LayoutPtr& made = cached.layouts[it - cached.outputs.begin()];
    if (made != settled && !SameButForTerms(*made, *settled)) return false;
  }
  return true;
}

Hash128 CacheKey(const Session::State& state, const Hash128& tape_key, bool runtime_starts) {
  Hash128 key = tape_key;
  key.Mix(runtime_starts ? 0xb : 0xa);
  const runtime::LoadedProgram::Options options = LoadOptions(state);
  key.Mix(options.deduplicate ? 0xd : 0xc);
  key.Mix(options.coalesce ? 0xf : 0xe);
  key.Mix(static_cast<uint64_t>(options.turns));
  key.Mix(options.one_place ? 3 : 2);
  key.Mix(state.options.price_moves ? 1 : 0);
  return key;
}

// True if the starts that the program knows are the tape's.
bool FitsStarts(const CachedProgram& cached, const Tape& tape) {
  return absl::c_all_of(cached.known_starts, [&](int r) {
    const Record& theirs = cached.recording->records[r];
    return SameStarts(theirs, theirs.args, tape.ArgumentsOf(r));
  });
}

// The records whose starts differ from those of `theirs`.
std::vector<int> OtherStarts(const Tape& tape, const Recording& theirs) {
  std::vector<int> others;
  for (const int r : RecordsWithStarts(tape.records())) {
    const Record& record = tape.records()[r];
    if (!SameStarts(record, record.args, theirs.records[r].args)) others.push_back(r);
  }
  return others;
}

// The records whose starts are passed at run time from now on: those in which tapes that are
// otherwise equal have differed so far. There are none for the first of such tapes.
std::vector<int> LateStarts(const Session::State& state, const Tape& tape,
                            const std::vector<CachedProgramPtr>& same_loose, const Hash128& loose) {
  std::vector<int> late;
  const auto add = [&](const std::vector<int>& more) {
    std::vector<int> all;
    absl::c_set_union(late, more, std::back_inserter(all));
    late = std::move(all);
  };
  if (const RecordingPtr first = state.programs.SeenLoose(loose)) add(OtherStarts(tape, *first));
  for (const CachedProgramPtr& p : same_loose) {
    add(p->late_starts);
    for (const int r : p->known_starts) {
      const Record& theirs = p->recording->records[r];
      if (!SameStarts(theirs, theirs.args, tape.ArgumentsOf(r))) add({r});
    }
  }
  return late;
}

std::string Announced(const Tape& tape, const std::vector<int>& late) {
  constexpr size_t kMost = 3;
  std::vector<std::string> names;
  for (const int r : late) {
    std::string name = StartToString(tape.records()[r]);
    if (!absl::c_linear_search(names, name)) names.push_back(std::move(name));
  }
  const bool more = names.size() > kMost;
  if (more) names.resize(kMost);
  return absl::StrCat("; ", absl::StrJoin(names, ", "), more ? " and others" : "",
                      names.size() > 1 ? " are" : " is", " passed at run time from now on");
}

CachedProgramPtr Found(Session::State& state, const CachedProgramPtr& program) {
  ++state.statistics.cache_hits;
  return program;
}

absl::StatusOr<CachedProgramPtr> FindOrCompile(Session::State& state, Tape& tape, const Live& live,
                                               const std::string& why) {
  const Hash128 strict = CacheKey(state, tape.strict(), false);
  const Hash128 loose = CacheKey(state, tape.loose(), true);
  std::vector<CachedProgramPtr> same = state.programs.Find(strict);
  for (const CachedProgramPtr& p : same) {
    if (Fits(*p, tape, live)) return Found(state, p);
  }
  const std::vector<CachedProgramPtr> same_loose = state.programs.Find(loose);
  for (const CachedProgramPtr& p : same_loose) {
    if (FitsStarts(*p, tape) && Fits(*p, tape, live)) return Found(state, p);
  }
  tape.StopFollowing();
  std::string reason = state.programs.Difference(tape);
  std::vector<int> late;
  if (same.empty()) late = LateStarts(state, tape, same_loose, loose);
  if (!late.empty()) {
    same = same_loose;
    if (same.empty()) reason += Announced(tape, late);
  }
  // On a second miss that differs in liveness only, the outputs are the union of both.
  std::vector<OutputSpec> outputs = live.outputs;
  if (!same.empty()) {
    for (const OutputSpec& o : same.front()->outputs) {
      const bool known = std::any_of(outputs.begin(), outputs.end(),
                                     [&](const OutputSpec& x) { return x.value == o.value; });
      if (!known && !live.IsLost(o.value)) outputs.push_back({o.value});
    }
  }
  const Hash128& key = late.empty() ? strict : loose;
  SPMD_ASSIGN_OR_RETURN(CachedProgramPtr cached, Compile(state, tape, std::move(outputs), key,
                                                         std::move(late), reason, why));
  if (!cached->known_starts.empty()) state.programs.NoteLoose(loose, cached->recording);
  state.programs.Insert(cached);
  return cached;
}

absl::StatusOr<runtime::PendingRunPtr> Enqueue(Session::State& state, const Tape& tape,
                                               const CachedProgramPtr& program_of_tape) {
  const CachedProgram& cached = *program_of_tape;
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  const program::Program& program = cached.program->program();
  std::vector<runtime::ExecutorQueue::Argument> arguments;
  Session::State::InFlight in_flight;
  arguments.reserve(cached.inputs.size());
  in_flight.arguments.reserve(cached.inputs.size());
  in_flight.results.reserve(cached.outputs.size());
  for (size_t k = 0; k < cached.inputs.size(); ++k) {
    const ValuePtr& value = tape.value(tape.inputs()[cached.inputs[k]].id);
    if (!value->poison.ok()) return value->poison;
    if (value->host.defined()) {
      const Layout wanted = program.LayoutOf(program.inputs[k].value);
      value->layout =
          std::make_shared<const Layout>(wanted.grid(), wanted.sharding().Reduced(), wanted.dims());
      value->tiles =
          runtime::Upload(value->host, *value->layout, *backend, LoadOptions(state).coalesce);
      value->host = at::Tensor();
    }
    runtime::ExecutorQueue::Argument argument;
    // Only the tape holds the value, so no Buffer will read it again.
    argument.donate = value.use_count() == 1;
    argument.value = {value->tiles, value->tiles == nullptr ? value->run : nullptr,
                      value->run_output};
    if (argument.donate) value->tiles = nullptr;
    arguments.push_back(std::move(argument));
    in_flight.arguments.push_back(
        {c10::weak_intrusive_ptr<Value>(value), arguments.back().value.run, value->run_output});
  }
  std::vector<c10::Scalar> scalars = tape.scalars();
  for (const int r : cached.starts) {
    AppendStarts(tape.records()[r], tape.ArgumentsOf(r), scalars);
  }
  if (state.queue == nullptr) {
    state.queue = std::make_unique<runtime::ExecutorQueue>(state.options.sync);
  }
  std::optional<GraphInputs> given;
  if (state.options.verify && !backend->planning()) {
    // If an argument is missing, the run itself fails.
    if (auto recorded = RecordInputs(arguments, scalars); recorded.ok()) {
      given = *std::move(recorded);
    }
  }
  in_flight.program = program_of_tape;
  in_flight.scalars = scalars;
  {
    const GilReleased no_gil(state);
    in_flight.run =
        state.queue->Enqueue(cached.program->loaded, std::move(arguments), std::move(scalars));
  }
  if (given.has_value() && in_flight.run->Wait().ok()) {
    SPMD_RETURN_IF_ERROR(CompareWithUnsharded(*cached.program, *given, *in_flight.run));
  }
  for (const OutputSpec& o : cached.outputs) in_flight.results.emplace_back(tape.value(o.value));
  runtime::PendingRunPtr run = in_flight.run;
  state.in_flight.push_back(std::move(in_flight));
  return run;
}

bool IsThere(const Value& value) {
  return value.tiles != nullptr || value.run != nullptr || value.host.defined();
}

absl::Status Lost(const absl::Status& status) {
  constexpr absl::string_view kLost = "the value was lost, because ops that it depends on failed: ";
  if (absl::StartsWith(status.message(), kLost)) return status;
  return absl::Status(status.code(), absl::StrCat(kLost, status.message()));
}

// Buffers of values that are lost get back what they held before, or their values get the failure.
// status_of(id) is ok for a value that is available nevertheless.
template <typename StatusOf>
void GiveUp(const Tape& tape, StatusOf&& status_of) {
  const auto is_lost = [&](Buffer& buffer) {
    return buffer.pending() && !status_of(buffer.value()->id).ok();
  };
  // Buffers are restored first: a second Buffer with the same value may have no previous value.
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId before) {
    if (is_lost(buffer) && before != kNoId && IsThere(*tape.value(before))) {
      buffer.Bind(tape.value(before));
    }
  });
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId) {
    if (!is_lost(buffer)) return;
    buffer.value()->poison = Lost(status_of(buffer.value()->id));
    buffer.value()->pending = false;
  });
}

// True if the failure has not been reported. It is reported once, for whichever of the runs that it
// stopped is looked at first.
bool Unreported(Session::State& state, const Session::State::InFlight& f) {
  if (f.reported) return false;
  const runtime::PendingRunPtr cause = f.run->cause();
  if (cause == nullptr) return true;
  const Session::State::InFlight* const root = FindInFlight(state, cause);
  return root != nullptr && !root->reported;
}

// True if an unreported failure must be kept: a live value is lost with it, or a later run depends
// on its surviving results.
bool MayBeSeen(const Session::State& state, const Session::State::InFlight& f) {
  for (const auto& weak : f.results) {
    const ValuePtr value = weak.lock();
    if (value != nullptr && value->run == f.run) return true;
  }
  return std::any_of(state.in_flight.begin(), state.in_flight.end(), [&](const auto& later) {
    return std::any_of(later.arguments.begin(), later.arguments.end(),
                       [&](const auto& argument) { return argument.run.lock() == f.run; });
  });
}

bool HasStepToUndo(const Session::State::InFlight& f) {
  return std::any_of(f.steps.begin(), f.steps.end(),
                     [](const StepPart& part) { return part.lost && !part.step->undone; });
}

void Report(Session::State& state, Session::State::InFlight& f) {
  f.reported = true;
  Session::State::InFlight* const root = FindInFlight(state, f.run->cause());
  if (root != nullptr) root->reported = true;
}

// The live values that a part of a step computes.
std::vector<TapeId> MadeBy(const StepPart& part, const Tape& tape, const Live& live) {
  std::vector<TapeId> made;
  for (const OutputSpec& o : live.outputs) {
    const int record = tape.origin(o.value).record;
    if (record >= 0 && part.Has(record)) made.push_back(o.value);
  }
  return made;
}

// If one value of a step is lost, all its values are. Returns the failure by which the last such
// step is lost.
absl::Status LoseSteps(const Tape& tape, const Live& live, std::vector<StepPart>& steps,
                       std::vector<absl::Status>& lost) {
  absl::Status why;
  for (StepPart& part : steps) {
    const std::vector<TapeId> made = MadeBy(part, tape, live);
    const auto first =
        std::find_if(made.begin(), made.end(), [&](TapeId v) { return !lost[v].ok(); });
    if (first == made.end()) continue;
    why = lost[*first];
    part.lost = part.is_first;
    for (const TapeId v : made) lost[v] = why;
  }
  return why;
}

// The number of steps, beside those that wait, that a loop that never looks at a value queues
// before it hears of a failure.
constexpr int kMostLostSteps = 8;

// Which failures of runs that are over count as losses, in addition to values that are lost
// already: none, those that have been reported, or all, which are then reported.
enum class Failures : uint8_t { kNone, kTold, kAll };

// The failure by which the value is lost, or ok.
absl::Status LossOf(Session::State& state, const Value& value, Failures failures) {
  if (failures == Failures::kNone || value.run == nullptr) return value.poison;
  if (!value.run->done() || value.run->Wait().ok()) return value.poison;
  Session::State::InFlight* const f = FindInFlight(state, value.run);
  if (f == nullptr || (failures == Failures::kTold && Unreported(state, *f))) return value.poison;
  Recover(state, *f);
  if (!f->errors[value.run_output].ok()) Report(state, *f);
  return f->errors[value.run_output];
}

// True if so many steps have failed that the next one reports it.
bool ManyStepsFailed(const Session::State& state) {
  int failed = 0;
  for (const Session::State::InFlight& f : state.in_flight) {
    if (!f.steps.empty() && f.run->done() && !f.run->Wait().ok()) ++failed;
  }
  return failed >= kMostLostSteps;
}

// Gives up the values and steps that depend on lost values, and removes them from `live`.
// Errors: the failure by which a step is lost.
absl::Status GiveUpDependents(Session::State& state, const Tape& tape, Failures failures,
                              std::vector<StepPart>& steps, Live& live) {
  std::vector<absl::Status> lost =
      LostValues(tape, [&](const Value& v) { return LossOf(state, v, failures); });
  if (lost.empty()) return absl::OkStatus();
  const absl::Status why = LoseSteps(tape, live, steps, lost);
  GiveUp(tape, [&](TapeId id) -> const absl::Status& { return lost[id]; });
  const auto is_lost = [&](TapeId id) { return !lost[id].ok(); };
  live.outputs.erase(std::remove_if(live.outputs.begin(), live.outputs.end(),
                                    [&](const OutputSpec& o) { return is_lost(o.value); }),
                     live.outputs.end());
  for (OutputSpec& o : live.outputs) {
    if (o.becomes != kNoId && is_lost(o.becomes)) o.becomes = kNoId;
  }
  live.lost = std::move(lost);
  return why;
}

// Restores what the lost steps among `steps` changed on the host. None of them is in flight.
int UndoLost(Session::State& state, const std::vector<StepPart>& steps) {
  std::vector<OptimizerStepPtr> lost;
  for (auto part = steps.rbegin(); part != steps.rend(); ++part) {
    if (part->lost) lost.push_back(part->step);
  }
  std::erase_if(state.open_steps, [&](const StepPart& open) {
    return std::find(lost.begin(), lost.end(), open.step) != lost.end();
  });
  return UndoHostChanges(lost);
}

// Loses everything on a tape that never ran.
void LoseAll(Session::State& state, const Tape& tape, std::vector<StepPart>& steps,
             const absl::Status& status) {
  GiveUp(tape, [&](TapeId) -> const absl::Status& { return status; });
  for (StepPart& part : steps) part.lost = part.is_first;
  UndoLost(state, steps);
}

absl::Status CutTape(Session::State& state, const std::string& why, int64_t ended_task,
                     Failures failures);

// Reports a failure: undoes lost steps, and gives up pending values that depend on lost ones;
// otherwise they would be computed from what Buffers get back. Returns the status to report.
absl::Status Tell(Session::State& state, const absl::Status& status) {
  const int steps = UndoSteps(state);
  const std::vector<TapeInput>& inputs = state.tape->inputs();
  const bool depends = std::any_of(inputs.begin(), inputs.end(), [&](const TapeInput& input) {
    const Value& value = *state.tape->value(input.id);
    return value.poison.ok() && !LossOf(state, value, Failures::kTold).ok();
  });
  if (depends) CutTape(state, "a failure", -1, Failures::kTold).IgnoreError();
  return SayUndoneSteps(status, steps);
}

}  // namespace

absl::Status Resolve(Session::State& state, Value& value) {
  if (value.run == nullptr) return value.poison;
  const runtime::PendingRunPtr run = value.run;
  absl::Status status = WaitFor(state, *run), told;
  if (Session::State::InFlight* const entry = status.ok() ? nullptr : FindInFlight(state, run)) {
    Recover(state, *entry);
    if (value.run == nullptr) return value.poison;
    if (!entry->errors[value.run_output].ok()) status = entry->errors[value.run_output];
    const bool first = Unreported(state, *entry);
    Report(state, *entry);
    if (first) told = Tell(state, status);  // may release the entry
  }
  if (value.run != nullptr) {
    value.run = nullptr;
    const ValuePtr before = std::move(value.before);
    value.before = nullptr;
    if (status.ok()) {
      // The result is not taken, since a waiting run may have it as an argument.
      auto tiles = run->Result(value.run_output, /*take=*/false);
      if (!tiles.ok()) return value.poison = tiles.status();
      value.tiles = *std::move(tiles);
      return absl::OkStatus();
    }
    if (before != nullptr) Resolve(state, *before).IgnoreError();
    if (before != nullptr && before->poison.ok() && before->tiles != nullptr) {
      value.tiles = before->tiles;
      value.layout = before->layout;
    } else {
      value.poison = Lost(status);
    }
  }
  return told.ok() ? value.poison : told;
}

absl::Status ReportAll(Session::State& state) {
  absl::Status first = std::exchange(state.unseen, absl::OkStatus());
  for (Session::State::InFlight& f : state.in_flight) {
    const absl::Status status = WaitFor(state, *f.run);
    if (status.ok()) continue;
    Recover(state, f);
    if (Unreported(state, f)) first.Update(status);
    Report(state, f);
  }
  if (!first.ok()) first = Tell(state, first);
  Collect(state);
  return first;
}

void Collect(Session::State& state) {
  std::deque<Session::State::InFlight>& runs = state.in_flight;
  for (auto it = runs.begin(); it != runs.end() && it->run->done();) {
    const absl::Status status = it->run->Wait();
    if (!status.ok() && Unreported(state, *it)) {
      Recover(state, *it);
      if (MayBeSeen(state, *it)) {
        ++it;
        continue;
      }
      state.unseen.Update(status);
    }
    if (!status.ok() && HasStepToUndo(*it)) UndoSteps(state);
    // Most results are available and are taken at once.
    std::vector<runtime::TiledTensorPtr> tiles = it->run->Results();
    constexpr size_t kAhead = 6;
    for (size_t k = 0; k < it->results.size(); ++k) {
      if (k + kAhead < it->results.size()) {
        Prefetch(it->results[k + kAhead]._unsafe_get_target(), sizeof(Value));
      }
      const ValuePtr value = it->results[k].lock();
      if (value == nullptr || value->run != it->run) continue;
      if (status.ok() && tiles[value->run_output] != nullptr) {
        value->tiles = std::move(tiles[value->run_output]);
        value->run = nullptr;
        value->before = nullptr;
      } else {
        Resolve(state, *value).IgnoreError();
      }
    }
    it = runs.erase(it);
  }
}

absl::StatusOr<Layout> ProvisionalLayout(Session::State& state, TapeId value) {
  Tape& tape = *state.tape;
  tape.StopFollowing();
  Live live = FindLive(tape);
  const std::vector<OutputSpec>& outputs = live.outputs;
  const auto it = std::find_if(outputs.begin(), outputs.end(),
                               [&](const OutputSpec& o) { return o.value == value; });
  if (it == outputs.end()) return absl::InternalError("the value is not alive");
  const MeshSet set = MeshesOf(state, tape, outputs);
  SPMD_ASSIGN_OR_RETURN(Lowered lowered, Lower(tape, outputs, {&set.meshes, &set.grids}));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled,
                        partition::Compile(lowered.graph, CompileOptionsFor(state, *backend)));
  return compiled.program.LayoutOf(compiled.program.outputs[it - outputs.begin()].value);
}

namespace {

// The form with its dimensions split into those of `sizes`.
BaseForm FormApart(const BaseForm& form, const Dims& sizes) {
  BaseForm apart{.dtype = form.dtype, .sizes = sizes, .strides = Dims(sizes.size())};
  size_t end = sizes.size();
  for (size_t d = form.sizes.size(); d-- > 0;) {
    int64_t within = 1;
    do {
      --end;
      apart.strides[end] = form.strides[d] * within;
      within *= sizes[end];
    } while (within < form.sizes[d]);
  }
  return apart;
}

// Compiles the tape or finds its program, and enqueues it.
absl::Status Run(Session::State& state, Tape& tape, const Live& live, std::vector<StepPart> steps,
                 const std::string& why) {
  absl::StatusOr<CachedProgramPtr> cached;
  absl::StatusOr<runtime::PendingRunPtr> run;
  try {
    cached = FindOrCompile(state, tape, live, why);
    run = cached.ok() ? Enqueue(state, tape, *cached) : cached.status();
  } catch (const std::exception& e) {  // a bug here, or no memory for an upload
    LoseAll(state, tape, steps, absl::InternalError(e.what()));
    throw;
  }
  if (!run.ok()) {
    LoseAll(state, tape, steps, run.status());
    return run.status();
  }
  std::vector<int64_t> made_by;
  for (const int input : (*cached)->inputs) {
    made_by.push_back(tape.value(tape.inputs()[input].id)->origin_run);
  }
  const int64_t number = state.steps.Ran((*cached)->program, made_by);
  for (size_t k = 0; k < (*cached)->outputs.size(); ++k) {
    const ValuePtr& value = tape.value((*cached)->outputs[k].value);
    value->pending = false;
    if (!(*cached)->outputs[k].apart.empty()) value->type.dims = (*cached)->outputs[k].apart;
    value->run = *run;
    value->run_output = static_cast<int>(k);
    value->layout = (*cached)->layouts[k];
    value->origin = (*cached)->program;
    value->origin_output = static_cast<int>(k);
    value->origin_run = number;
  }
  ForEachBuffer(tape, [&](Buffer& buffer, TapeId before) {
    Value& value = *buffer.value();
    if (value.run != *run) return;
    if (value.type.dims != buffer.form.sizes)
      buffer.Rebase(FormApart(buffer.form, value.type.dims));
    if (before == kNoId) return;
    if (tape.type(before) == value.type) value.before = tape.value(before);
    const bool was_terms = buffer.settled != nullptr && buffer.settled->sharding().IsUnreduced();
    // An equal layout is replaced, too: next time the comparison finds the same pointer.
    if (buffer.settled == nullptr || was_terms || value.layout->sharding().IsUnreduced() ||
        *buffer.settled == *value.layout) {
      buffer.settled = value.layout;
    }
  });
  const auto is_tensor = [&](TapeId v) { return NumElements(tape.type(v).dims) > 1; };
  for (const StepPart& part : steps) {
    if (!part.under_way) continue;
    const std::vector<TapeId> made = MadeBy(part, tape, live);
    if (std::any_of(made.begin(), made.end(), is_tensor)) part.step->written = true;
  }
  state.in_flight.back().steps = std::move(steps);
  ++state.statistics.runs;
  state.last_program = (*cached)->program;
  return absl::OkStatus();
}

}  // namespace

namespace {

absl::Status CutTape(Session::State& state, const std::string& why, int64_t ended_task,
                     Failures failures) {
  if (state.tape->bindings().empty()) {
    TakeSteps(state);
    if (state.tape->num_values() > 0) state.tape = std::make_unique<Tape>();
    return absl::OkStatus();
  }
  if (state.closed) return absl::FailedPreconditionError("the interpreter is shutting down");
  // Collect would resolve values that must be found lost here.
  if (failures != Failures::kTold) Collect(state);
  BindWaitingMarks(state);
  const int ended = ended_task < 0 ? kNoTask : state.tape->TaskNumber(ended_task);
  state.tape->EndFollowing();
  Live live = FindLive(*state.tape, ended);
  std::vector<StepPart> steps = TakeSteps(state);
  const std::unique_ptr<Tape> tape = std::exchange(state.tape, std::make_unique<Tape>());
  if (!steps.empty() && ManyStepsFailed(state)) failures = Failures::kAll;
  const absl::Status lost = GiveUpDependents(state, *tape, failures, steps, live);
  const int undone = lost.ok() ? 0 : UndoLost(state, steps) + UndoSteps(state);
  if (!live.outputs.empty()) {
    SPMD_RETURN_IF_ERROR(Run(state, *tape, live, std::move(steps), why));
  }
  return SayUndoneSteps(lost, undone);
}

}  // namespace

absl::Status Cut(Session::State& state, const std::string& why, int64_t ended_task) {
  return CutTape(state, why, ended_task, Failures::kNone);
}

}  // namespace spmd::trace
