// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/find_program.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/trace/run/compile.h"
#include "csrc/trace/run/fit.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/tape/same_records.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

Hash128 CacheKey(const SessionState& state, const Hash128& tape_key, bool runtime_starts) {
  Hash128 key = tape_key;
  key.Mix(runtime_starts ? 0xb : 0xa);
  const ProgramOptions options = ProgramOptionsOf(state);
  for (const bool on :
       {options.deduplicate, options.coalesce, options.one_place, options.price_moves}) {
    key.Mix(on ? 0xd : 0xc);
  }
  key.Mix(static_cast<uint64_t>(options.turns));
  key.Mix(static_cast<uint64_t>(options.memory_limit));
  return key;
}

// Those of `found`, which have the tape's key, that were compiled from the same records with the
// same options.
std::vector<CachedProgramPtr> Confirmed(const SessionState& state, const Tape& tape,
                                        std::vector<CachedProgramPtr> found) {
  const ProgramOptions options = ProgramOptionsOf(state);
  std::erase_if(found, [&](const CachedProgramPtr& p) {
    return p->options != options || !SameTape(*p, tape);
  });
  return found;
}

// True if what the program knows of starts is so in the tape.
bool FitsStarts(const CachedProgram& cached, const Tape& tape) {
  const auto known = [&](int r) {
    const Record& theirs = cached.recording->records[r];
    return SameStarts(theirs, theirs.args, tape.ArgumentsOf(r));
  };
  const auto reached = [&](int r) {
    const Record& theirs = cached.recording->records[r];
    return HaveSameReach(theirs, tape.type(theirs.operands[0]), theirs.args, tape.ArgumentsOf(r));
  };
  return absl::c_all_of(cached.known_starts, known) && absl::c_all_of(cached.late_starts, reached);
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
std::vector<int> LateStarts(const SessionState& state, const Tape& tape,
                            const std::vector<CachedProgramPtr>& same_loose, const Hash128& loose) {
  std::vector<int> late;
  const auto add = [&](const std::vector<int>& more) {
    std::vector<int> all;
    absl::c_set_union(late, more, std::back_inserter(all));
    late = std::move(all);
  };
  if (const RecordingPtr first = state.programs.SeenLoose(loose);
      first != nullptr && SameButForStarts(*first, tape.recording())) {
    add(OtherStarts(tape, *first));
  }
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

CachedProgramPtr Found(SessionState& state, const CachedProgramPtr& program) {
  ++state.diagnostics.statistics.cache_hits;
  return program;
}

}  // namespace

absl::StatusOr<CachedProgramPtr> FindOrCompile(SessionState& state, Tape& tape, const Live& live,
                                               const std::string& why) {
  const Hash128 strict = CacheKey(state, tape.strict(), false);
  std::vector<CachedProgramPtr> same = Confirmed(state, tape, state.programs.Find(strict));
  std::erase_if(same, [&](const CachedProgramPtr& p) { return !FitsStarts(*p, tape); });
  // Why the newest of those programs does not fit.
  const CachedProgram* nearest = nullptr;
  std::optional<Misfit> misfit;
  const auto fits = [&](const CachedProgramPtr& p, bool as_they_are) {
    std::optional<Misfit> found = FindMisfit(*p, tape, live);
    if (!found.has_value() && as_they_are) found = FindMoved(*p, tape);
    if (found.has_value() && nearest == nullptr) {
      nearest = p.get();
      misfit = found;
    }
    return !found.has_value();
  };
  for (const CachedProgramPtr& p : same) {
    if (fits(p, /*as_they_are=*/true)) return Found(state, p);
  }
  const Hash128 loose = CacheKey(state, tape.loose(), true);
  const std::vector<CachedProgramPtr> same_loose =
      Confirmed(state, tape, state.programs.Find(loose));
  // A program for each set of layouts in which its inputs come, but not for very many.
  constexpr size_t kMostLayouts = 4;
  const bool takes_any = same.size() + same_loose.size() >= kMostLayouts;
  for (const CachedProgramPtr& p : same_loose) {
    if (FitsStarts(*p, tape) && fits(p, !takes_any)) return Found(state, p);
  }
  if (takes_any) {
    for (const CachedProgramPtr& p : same) {
      if (fits(p, /*as_they_are=*/false)) return Found(state, p);
    }
  }
  tape.StopFollowing();
  std::string reason = misfit.has_value() ? MisfitToString(*misfit, *nearest, tape)
                                          : state.programs.Difference(tape);
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
      if (!known && !live.IsLost(o.value))
        outputs.push_back({.value = o.value, .like = o.like, .held = o.held});
    }
  }
  const Hash128& key = late.empty() ? strict : loose;
  SPMD_ASSIGN_OR_RETURN(CachedProgramPtr cached, Compile(state, tape, std::move(outputs), key,
                                                         std::move(late), reason, why));
  if (!cached->known_starts.empty()) state.programs.NoteLoose(loose, cached->recording);
  state.programs.Insert(cached);
  return cached;
}

}  // namespace spmd::trace
