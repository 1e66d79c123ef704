// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/agree.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "csrc/runtime/dispatch_guard.h"
#include "csrc/runtime/peers.h"
#include "csrc/runtime/rounds.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/program/difference.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/util/status.h"

namespace spmd::trace {
namespace {

using runtime::Peers;
using runtime::ProcessName;
using Ticket = Peers::Words;

enum class Kind : uint64_t { kCut, kRead, kSay, kLeave };

// The words of a ticket. The last word is what the processes must do together after a difference,
// if it is one that can be mended; the words before must be equal.
enum Word : size_t { kKind, kRound, kCalls, kNumbers, kData, kLive };

// The same in all processes that run the same build.
uint64_t HashOf(std::string_view bytes) { return std::hash<std::string_view>()(bytes); }

std::string TextOf(const c10::Scalar& scalar) {
  if (scalar.isComplex()) {
    const auto c = scalar.toComplexDouble();
    return absl::StrCat(c.real(), "+", c.imag(), "j");
  }
  if (scalar.isBoolean()) return scalar.toBool() ? "True" : "False";
  if (!scalar.isFloatingPoint()) return absl::StrCat(scalar.toLong());
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", scalar.toDouble());
  return text;
}

// The numbers that are passed at run time, starts included: they are no part of the calls' key.
std::vector<c10::Scalar> NumbersOf(const Tape& tape) {
  std::vector<c10::Scalar> numbers = tape.scalars();
  for (const int r : RecordsWithStarts(tape.records())) {
    AppendStarts(tape.records()[r], tape.ArgumentsOf(r), numbers);
  }
  return numbers;
}

std::string TextOf(const std::vector<c10::Scalar>& numbers) {
  return absl::StrJoin(numbers, "\n", [](std::string* out, const c10::Scalar& number) {
    out->append(TextOf(number));
  });
}

// A hash of what is on the host. Of large data, some bytes are taken, unless programs are verified.
uint64_t HashOfData(const at::Tensor& data, bool all) {
  constexpr int64_t kSmall = 64 << 10;
  const at::Tensor bytes = data.resolve_conj().resolve_neg().contiguous();
  const auto n = static_cast<int64_t>(bytes.nbytes());
  const auto* const at = static_cast<const char*>(bytes.const_data_ptr());
  if (n == 0) return 0;
  if (all || n <= kSmall) return HashOf({at, static_cast<size_t>(n)});
  uint64_t hash = static_cast<uint64_t>(n);
  constexpr int64_t kParts = 64, kLength = 64;
  for (int64_t k = 0; k < kParts; ++k) {
    const int64_t from = (n - kLength) / (kParts - 1) * k;
    hash = hash * 0x9e3779b97f4a7c15ull + HashOf({at + from, kLength});
  }
  return hash;
}

// Whether there is data on the host. What is recorded without data, for plans, has a meta tensor.
bool HasHostData(const Value& value) { return value.host.defined() && !value.host.is_meta(); }

// By input of the tape: a hash of the data that is on the host; 0 for what is on the devices.
std::vector<uint64_t> DataOf(const SessionState& state, const Tape& tape) {
  std::vector<uint64_t> hashes;
  for (const TapeInput& input : tape.inputs()) {
    const Value& value = *tape.value(input.id);
    hashes.push_back(HasHostData(value) ? HashOfData(value.host, state.options.verify) : 0);
  }
  return hashes;
}

// "aten::mul.Tensor(f32[8,4], f32[]) -> f32[8,4] at train.py:12".
std::string DescribeRecord(const Tape& tape, size_t r) {
  const Record& record = tape.records()[r];
  const auto type = [&](TapeId id) {
    return id == kNoId ? std::string("_") : tape.type(id).ToString();
  };
  std::string text =
      absl::StrCat(record.op->name, "(",
                   absl::StrJoin(record.operands, ", ",
                                 [&](std::string* out, TapeId id) { out->append(type(id)); }),
                   ")", record.num_results > 0 ? " -> " + type(record.first_result) : "");
  if (record.source >= 0) absl::StrAppend(&text, " at ", tape.sources()[record.source]);
  return text;
}

// "marks the result of aten::mul.Tensor(…) … as ('data', None) on [data=8] over devices 0..7".
std::string DescribeAnnotation(const Tape& tape, const Annotation& annotation) {
  const int32_t record = tape.origin(annotation.value).record;
  return absl::StrCat("marks ",
                      record < 0
                          ? absl::StrCat("an input of ", tape.type(annotation.value).ToString())
                          : absl::StrCat("the result of ", DescribeRecord(tape, record)),
                      " as ", MarkToString(annotation.mark));
}

// "process 0 … and process 2 …", of the first process and the first that says something else.
std::string Compared(const std::vector<std::string>& said) {
  for (size_t r = 1; r < said.size(); ++r) {
    if (said[r] == said[0]) continue;
    return absl::StrCat("process 0 ", said[0], ", and process ", r, " ", said[r]);
  }
  return absl::StrCat("all processes say the same: ", said[0]);
}

// One exchange between the scripts of all processes. The GIL is released meanwhile; Ctrl-C ends the
// job and raises.
template <typename Exchange>
auto Together(SessionState& state, Exchange&& exchange) {
  bool signalled = false;
  state.processes.job.script->set_interrupted([&] {
    signalled = signalled || (state.hooks.signalled != nullptr && state.hooks.signalled());
    return signalled;
  });
  auto result = [&] {
    const GilReleased no_gil(state);
    return exchange(*state.processes.job.script);
  }();
  state.processes.job.script->set_interrupted(nullptr);
  if (signalled) state.hooks.raise_signal("");
  return result;
}

absl::StatusOr<std::vector<std::string>> Tell(SessionState& state, const std::string& mine) {
  return Together(state, [&](Peers& peers) { return peers.Tell(mine); });
}

std::string Line(const SessionState& state) {
  const std::string line = state.hooks.current_line != nullptr ? state.hooks.current_line() : "";
  return line.empty() ? "" : absl::StrCat(" at ", line);
}

absl::Status Differ(const SessionState& state, const std::string& how) {
  return absl::FailedPreconditionError(
      absl::StrCat("the processes of the job differ in round ", state.processes.round, ": ", how));
}

bool AllEqual(const std::vector<Ticket>& all, size_t word) {
  return std::all_of(all.begin(), all.end(),
                     [&](const Ticket& words) { return words[word] == all[0][word]; });
}

// In what the processes differ that run a call of the same text. Collective.
absl::StatusOr<std::string> OtherDetail(SessionState& state, const Tape& tape, size_t record) {
  const std::vector<std::string> mine = DescribeDetails(tape.recording(), record);
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all, Tell(state, absl::StrJoin(mine, "\n")));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (size_t r = 1; r < all.size(); ++r) {
    const std::vector<std::string> other = absl::StrSplit(all[r], '\n');
    for (size_t k = 0; k < std::min(first.size(), other.size()); ++k) {
      if (first[k] == other[k]) continue;
      return absl::StrCat(first[k], " in process 0, and ", other[k], " in process ", r);
    }
  }
  return "a value that it is computed from is another one";
}

// The first call or mark in which the processes differ. Collective.
absl::Status OtherCalls(SessionState& state, const Tape& tape, const std::string& why) {
  const Recording& recording = tape.recording();
  std::vector<uint64_t> keys;
  for (const Hash128& key : recording.keys) keys.push_back(key.lo());
  const std::string mine(reinterpret_cast<const char*>(keys.data()),
                         keys.size() * sizeof(uint64_t));
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all, Tell(state, mine));
  size_t same = 0;
  const auto key_at = [&](const std::string& theirs) {
    return theirs.substr(same * sizeof(uint64_t), sizeof(uint64_t));
  };
  while (!key_at(all[0]).empty() && std::all_of(all.begin(), all.end(), [&](const auto& theirs) {
    return key_at(theirs) == key_at(all[0]);
  })) {
    ++same;
  }
  const auto calls = static_cast<size_t>(
      std::count_if(recording.events.begin(), recording.events.begin() + static_cast<int64_t>(same),
                    [](const Event& event) { return event.kind == Event::Kind::kRecord; }));
  // An input is told with the call that uses it.
  std::string next = absl::StrCat("stops here (", why, ")", Line(state));
  if (same < keys.size() && recording.events[same].kind == Event::Kind::kAnnotation) {
    next = DescribeAnnotation(tape, recording.annotations[recording.events[same].index]);
  } else if (calls < recording.records.size()) {
    next = absl::StrCat("runs ", DescribeRecord(tape, calls));
  }
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> said, Tell(state, next));
  const std::string before = absl::StrCat("; before this they made the same ", calls, " calls");
  if (!std::all_of(said.begin(), said.end(), [&](const auto& s) { return s == said[0]; })) {
    return Differ(state, absl::StrCat(Compared(said), before));
  }
  if (!absl::StartsWith(next, "runs ")) {
    return Differ(state, absl::StrCat("each of them ", next, ", with other values", before));
  }
  SPMD_ASSIGN_OR_RETURN(const std::string detail, OtherDetail(state, tape, calls));
  return Differ(state, absl::StrCat("all of them run ", DescribeRecord(tape, calls), ", where ",
                                    detail, before));
}

absl::Status OtherNumbers(SessionState& state, const Tape& tape) {
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all, Tell(state, TextOf(NumbersOf(tape))));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (size_t r = 1; r < all.size(); ++r) {
    const std::vector<std::string> other = absl::StrSplit(all[r], '\n');
    for (size_t k = 0; k < std::min(first.size(), other.size()); ++k) {
      if (first[k] == other[k]) continue;
      std::string user;
      for (size_t i = 0; i < tape.records().size() && user.empty(); ++i) {
        const Record& record = tape.records()[i];
        const auto at = static_cast<int>(k) - record.first_scalar;
        if (at >= 0 && at < record.num_scalars) user = DescribeRecord(tape, i);
      }
      return Differ(
          state, absl::StrCat("a number that is passed to ", user.empty() ? "an index" : user,
                              " is ", first[k], " in process 0 and ", other[k], " in process ", r,
                              ". Learning rates, seeds and indices must be the same in "
                              "all processes: random numbers are drawn for the whole "
                              "tensor, whatever its sharding"));
    }
  }
  return Differ(state, "the numbers that are passed to the calls");
}

absl::Status OtherData(SessionState& state, const Tape& tape) {
  std::vector<std::string> lines;
  const std::vector<uint64_t> hashes = DataOf(state, tape);
  for (size_t k = 0; k < hashes.size(); ++k) {
    const TapeInput& input = tape.inputs()[k];
    lines.push_back(absl::StrCat(
        hashes[k] == 0 ? "is on the devices" : absl::StrCat("is ", hashes[k]), "\t",
        tape.type(input.id).ToString(),
        input.mark == nullptr ? "" : absl::StrCat(" marked ", SpecToString(input.mark->spec))));
  }
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        Tell(state, absl::StrJoin(lines, "\n")));
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (size_t r = 1; r < all.size(); ++r) {
    const std::vector<std::string> other = absl::StrSplit(all[r], '\n');
    for (size_t k = 0; k < std::min(first.size(), other.size()); ++k) {
      if (first[k] == other[k]) continue;
      return Differ(state,
                    absl::StrCat("data that is moved to the device, ",
                                 first[k].substr(first[k].find('\t') + 1),
                                 ", is not the same in "
                                 "process 0 and process ",
                                 r,
                                 ". Every process gives the whole value; a sampler that gives each "
                                 "process a part, such as DistributedSampler, is left out"));
    }
  }
  return Differ(state, "data that is moved to the device");
}

// What the live values of all processes are together. Each line is a value with what it becomes.
absl::Status Unite(SessionState& state, const Tape& tape, Live& live) {
  const auto text = [](const OutputSpec& spec) {
    return absl::StrCat(spec.value, " ", spec.becomes, " ", spec.may_stay_unreduced ? 1 : 0, " ",
                        spec.may_be_apart ? 1 : 0);
  };
  std::vector<std::string> mine;
  for (const OutputSpec& spec : live.outputs) mine.push_back(text(spec));
  for (size_t id = 0; id < live.lost.size(); ++id) {
    if (!live.lost[id].ok()) mine.push_back(absl::StrCat("lost ", id));
  }
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> all, Tell(state, absl::StrJoin(mine, "\n")));
  std::vector<OutputSpec> united;
  std::vector<TapeId> lost;
  for (const std::string& theirs : all) {
    for (const absl::string_view line : absl::StrSplit(theirs, '\n', absl::SkipEmpty())) {
      const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
      int64_t value = 0, becomes = 0;
      if (parts[0] == "lost" && parts.size() == 2 && absl::SimpleAtoi(parts[1], &value)) {
        lost.push_back(static_cast<TapeId>(value));
        continue;
      }
      if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &value) ||
          !absl::SimpleAtoi(parts[1], &becomes) ||
          value >= static_cast<int64_t>(tape.num_values())) {
        return absl::InternalError("a process sent what is no list of results");
      }
      const OutputSpec spec{static_cast<TapeId>(value),
                            static_cast<TapeId>(becomes),
                            parts[2] == "1",
                            parts[3] == "1",
                            {}};
      const auto known = std::find_if(united.begin(), united.end(),
                                      [&](const OutputSpec& x) { return x.value == spec.value; });
      if (known == united.end()) {
        united.push_back(spec);
        continue;
      }
      // What not all processes can do, none does.
      if (known->becomes != spec.becomes) known->becomes = kNoId;
      known->may_stay_unreduced = known->may_stay_unreduced && spec.may_stay_unreduced;
      known->may_be_apart = known->may_be_apart && spec.may_be_apart;
    }
  }
  for (OutputSpec& spec : united) {
    if (std::find(lost.begin(), lost.end(), spec.value) != lost.end()) {
      return Differ(state,
                    "a value is lost with a failure in one process, and another computes it");
    }
    const auto holders = std::count_if(all.begin(), all.end(), [&](const std::string& theirs) {
      const auto lines = absl::StrSplit(theirs, '\n');
      return std::any_of(lines.begin(), lines.end(), [&](absl::string_view line) {
        return absl::StartsWith(line, absl::StrCat(spec.value, " "));
      });
    });
    if (holders < std::ssize(all)) {
      spec.becomes = kNoId;
      spec.may_stay_unreduced = spec.may_be_apart = false;
      continue;
    }
    // All hold the same Buffers, whose marks are the same.
    const auto own = std::find_if(live.outputs.begin(), live.outputs.end(),
                                  [&](const OutputSpec& x) { return x.value == spec.value; });
    if (spec.becomes == kNoId) spec.like = own->like;
    spec.held = own->held;
  }
  live.outputs = std::move(united);
  return absl::OkStatus();
}

uint64_t HashOf(const Live& live) {
  Hash128 hash;
  for (const OutputSpec& spec : live.outputs) {
    hash.Mix(static_cast<uint64_t>(spec.value));
    hash.Mix(static_cast<uint64_t>(spec.becomes));
    hash.Mix(spec.may_stay_unreduced ? 3 : 1);
    hash.Mix(spec.may_be_apart ? 3 : 1);
  }
  for (size_t id = 0; id < live.lost.size(); ++id) {
    if (!live.lost[id].ok()) hash.Mix(~static_cast<uint64_t>(id));
  }
  return hash.lo();
}

// Begins the next round. Returns the tickets of all, whose kinds and rounds are equal.
// Errors: what the processes do, if they do different things.
absl::StatusOr<std::vector<Ticket>> NextRound(SessionState& state, Kind kind, Ticket ticket,
                                              const std::string& doing) {
  Processes& processes = state.processes;
  ++processes.round;
  ticket[kKind] = static_cast<uint64_t>(kind);
  ticket[kRound] = static_cast<uint64_t>(processes.round);
  processes.job.script->set_doing(doing);
  SPMD_ASSIGN_OR_RETURN(std::vector<Ticket> all,
                        Together(state, [&](Peers& peers) { return peers.Agree(ticket); }));
  if (AllEqual(all, kKind) && AllEqual(all, kRound)) return all;
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> said, Tell(state, doing));
  std::string hint;
  for (const Ticket& words : all) {
    if (words[kKind] == static_cast<uint64_t>(Kind::kLeave)) {
      hint = ". Do the loaders of all processes have equal lengths?";
    } else if (hint.empty() && words[kKind] == static_cast<uint64_t>(Kind::kRead)) {
      hint =
          ". A value that several processes hold is read by all of them or by none; for one that "
          "a single process prints, let all read it first";
    }
  }
  return Differ(state, absl::StrCat(Compared(said), hint));
}

}  // namespace

absl::Status AgreeOnCut(SessionState& state, const Tape& tape, Live& live, const std::string& why) {
  if (!state.processes.several()) return absl::OkStatus();
  Hash128 calls = tape.key();
  calls.Mix(static_cast<uint64_t>(tape.num_records()));
  calls.Mix(state.options.verify ? 2 : 1);
  Hash128 data;
  for (const uint64_t hash : DataOf(state, tape)) data.Mix(hash);
  Ticket ticket = {};
  ticket[kCalls] = calls.hi() ^ calls.lo();
  ticket[kNumbers] = HashOf(TextOf(NumbersOf(tape)));
  ticket[kData] = data.lo();
  ticket[kLive] = HashOf(live);
  SPMD_ASSIGN_OR_RETURN(const std::vector<Ticket> all,
                        NextRound(state, Kind::kCut, ticket,
                                  absl::StrCat("runs the ", tape.num_records(),
                                               " calls that are pending", Line(state))));
  if (!AllEqual(all, kCalls)) return OtherCalls(state, tape, why);
  if (!AllEqual(all, kNumbers)) return OtherNumbers(state, tape);
  if (!AllEqual(all, kData)) return OtherData(state, tape);
  if (!AllEqual(all, kLive)) return Unite(state, tape, live);
  return absl::OkStatus();
}

absl::Status AgreeOnRead(SessionState& state, const Value& value, const std::string& why) {
  if (!state.processes.several()) return absl::OkStatus();
  const std::string what = value.layout != nullptr ? absl::StrCat(value.layout->ToString(), " on ",
                                                                  value.layout->grid()->ToString())
                                                   : "";
  Ticket ticket = {};
  ticket[kCalls] = HashOf(absl::StrCat(value.type.ToString(), " ", what, " ", value.origin_output));
  const std::string doing =
      absl::StrCat("reads a value of ", value.type.ToString(), " (", why, ")", Line(state));
  SPMD_ASSIGN_OR_RETURN(const std::vector<Ticket> all,
                        NextRound(state, Kind::kRead, ticket, doing));
  if (AllEqual(all, kCalls)) return absl::OkStatus();
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> said, Tell(state, doing));
  return Differ(state, Compared(said));
}

absl::StatusOr<std::vector<std::string>> SayInRound(SessionState& state, const std::string& mine,
                                                    const std::string& doing) {
  if (!state.processes.several()) return std::vector<std::string>{mine};
  const std::string line = absl::StrCat(doing, Line(state));
  SPMD_RETURN_IF_ERROR(NextRound(state, Kind::kSay, {}, line).status());
  SPMD_ASSIGN_OR_RETURN(const std::vector<std::string> does, Tell(state, doing));
  for (const std::string& theirs : does) {
    if (theirs != does[0]) return Differ(state, Compared(does));
  }
  return Tell(state, mine);
}

absl::Status AgreeToLeave(SessionState& state) {
  if (!state.processes.several() || std::exchange(state.processes.left, true)) {
    return absl::OkStatus();
  }
  const int64_t rounds = state.processes.round;
  return NextRound(state, Kind::kLeave, {},
                   absl::StrCat("has ended its script after round ", rounds))
      .status();
}

absl::Status EndTogether(SessionState& state, const std::exception& e, const std::string& doing) {
  if (!state.processes.several()) return absl::OkStatus();
  Peers& script = *state.processes.job.script;
  const absl::Status status = runtime::StatusFromException(e, absl::StrCat(doing, Line(state)));
  script.Fail(runtime::InProcess(status, script.rank()));
  return absl::IsResourceExhausted(status) ? script.failure() : absl::OkStatus();
}

std::optional<uint64_t> HashOfHostData(SessionState& state, const at::Tensor& tensor) {
  Buffer& buffer = *BufferOf(tensor);
  if (buffer.pending() || buffer.holds_nothing() || !HasHostData(*buffer.value())) {
    return std::nullopt;
  }
  return HashOfData(buffer.value()->host, state.options.verify);
}

absl::StatusOr<at::Tensor> ReadValue(SessionState& state, const Value& value,
                                     const std::string& why) {
  Peers* const peers = state.processes.job.script;
  if (runtime::IsHeldByAll(*value.tiles, peers)) return runtime::Download(*value.tiles, peers);
  SPMD_RETURN_IF_ERROR(AgreeOnRead(state, value, why));
  try {
    return Together(state, [&](Peers& all) { return runtime::Download(*value.tiles, &all); });
  } catch (const std::exception& e) {
    SPMD_RETURN_IF_ERROR(EndTogether(
        state, e, absl::StrCat("reading a value of ", value.type.ToString(), " (", why, ")")));
    throw;
  }
}

}  // namespace spmd::trace
