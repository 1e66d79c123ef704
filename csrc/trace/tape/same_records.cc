// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/same_records.h"

#include "csrc/trace/op/attribute.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

namespace {

enum class Starts : uint8_t { kCompared, kIgnored };

bool SameRecord(const Record& a, const Record& b, Starts starts) {
  uint64_t different = 0;
  if (a.num_results != b.num_results || !SameButFor(a, b, different)) return false;
  if (different == 0) return true;
  return starts == Starts::kIgnored && (different & ~(StartArguments(a) & StartArguments(b))) == 0;
}

bool SameEvents(const Recording& a, const Recording& b, int32_t events, Starts starts) {
  if (&a == &b) return true;
  size_t value = 0;
  for (int32_t e = 0; e < events; ++e) {
    const Event& event = a.events[e];
    if (event.kind != b.events[e].kind || event.index != b.events[e].index) return false;
    int results = 0;
    switch (event.kind) {
      case Event::Kind::kInput:
        if (!SameMark(a.input_marks[event.index], b.input_marks[event.index])) return false;
        results = 1;
        break;
      case Event::Kind::kRecord:
        if (!SameRecord(a.records[event.index], b.records[event.index], starts)) return false;
        results = a.records[event.index].num_results;
        break;
      case Event::Kind::kAnnotation: {
        const Annotation &x = a.annotations[event.index], &y = b.annotations[event.index];
        if (x.value != y.value || !SameMark(x.mark, y.mark)) return false;
        break;
      }
    }
    for (; results > 0; --results, ++value) {
      if (!(a.types[value] == b.types[value]) || a.manual[value] != b.manual[value]) return false;
    }
  }
  return true;
}

}  // namespace

bool SameButFor(const Record& a, const Record& b, uint64_t& different) {
  if (a.op != b.op || a.operands != b.operands || a.groups != b.groups || a.task != b.task ||
      a.updates_first != b.updates_first) {
    return false;
  }
  for (size_t i = 0; i < a.args.size(); ++i) {
    const ArgInfo& info = a.op->args[i];
    if (info.kind != ArgKind::kOther) continue;
    const bool runtime = IsRuntimeValue(info, a.args[i]);
    if (runtime != IsRuntimeValue(info, b.args[i])) return false;
    if (!SameArgument(a.args[i], b.args[i], !runtime)) different |= uint64_t{1} << i;
  }
  return true;
}

bool SameBeginning(const Recording& a, const Recording& b, int32_t events) {
  return SameEvents(a, b, events, Starts::kCompared);
}

bool SameButForStarts(const Recording& a, const Recording& b) {
  return a.events.size() == b.events.size() &&
         SameEvents(a, b, static_cast<int32_t>(a.events.size()), Starts::kIgnored);
}

}  // namespace spmd::trace
