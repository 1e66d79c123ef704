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

Hash128 CacheKey(const SessionState& state, const Hash128& tape_key) {
  Hash128 key = tape_key;
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

// The records whose starts are passed at run time from now on: those in which tapes that are
// otherwise equal have differed so far. `same` are the programs of such tapes.
std::vector<int> LateStarts(const Tape& tape, const std::vector<CachedProgramPtr>& same) {
  std::vector<int> late;
  for (const CachedProgramPtr& p : same) {
    late.insert(late.end(), p->late_starts.begin(), p->late_starts.end());
    for (const int r : p->known_starts) {
      const Record& theirs = p->recording->records[r];
      if (!SameStarts(theirs, theirs.args, tape.ArgumentsOf(r))) late.push_back(r);
    }
  }
  absl::c_sort(late);
  late.erase(std::unique(late.begin(), late.end()), late.end());
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
  const Hash128 key = CacheKey(state, tape.key());
  const std::vector<CachedProgramPtr> same = Confirmed(state, tape, state.programs.Find(key));
  // Programs that know all starts are better than those that take some at run time.
  std::vector<CachedProgramPtr> knowing, taking;
  for (const CachedProgramPtr& p : same) {
    if (FitsStarts(*p, tape)) (p->late_starts.empty() ? knowing : taking).push_back(p);
  }
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
  for (const CachedProgramPtr& p : knowing) {
    if (fits(p, /*as_they_are=*/true)) return Found(state, p);
  }
  // A program for each set of layouts in which its inputs come, but not for very many.
  constexpr size_t kMostLayouts = 4;
  const bool takes_any = knowing.size() + taking.size() >= kMostLayouts;
  for (const CachedProgramPtr& p : taking) {
    if (fits(p, !takes_any)) return Found(state, p);
  }
  if (takes_any) {
    for (const CachedProgramPtr& p : knowing) {
      if (fits(p, /*as_they_are=*/false)) return Found(state, p);
    }
  }
  tape.StopFollowing();
  std::string reason = misfit.has_value() ? MisfitToString(*misfit, *nearest, tape)
                                          : state.programs.Difference(tape);
  std::vector<int> late;
  if (knowing.empty()) late = LateStarts(tape, same);
  std::vector<CachedProgramPtr> alike = std::move(knowing);
  if (!late.empty()) {
    absl::c_copy_if(same, std::back_inserter(alike),
                    [](const CachedProgramPtr& p) { return !p->late_starts.empty(); });
    if (alike.empty()) reason += Announced(tape, late);
  }
  // On a second miss that differs in liveness only, the outputs are the union of both.
  std::vector<OutputSpec> outputs = live.outputs;
  if (!alike.empty()) {
    for (const OutputSpec& o : alike.front()->outputs) {
      const bool known = std::any_of(outputs.begin(), outputs.end(),
                                     [&](const OutputSpec& x) { return x.value == o.value; });
      if (!known && !live.IsLost(o.value))
        outputs.push_back({.value = o.value, .like = o.like, .held = o.held});
    }
  }
  SPMD_ASSIGN_OR_RETURN(CachedProgramPtr cached, Compile(state, tape, std::move(outputs), key,
                                                         std::move(late), reason, why));
  state.programs.Insert(cached);
  return cached;
}

}  // namespace spmd::trace
