// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/difference.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/trace/op/attribute.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/tape/tape.h"

namespace spmd::trace {

namespace {

// The name of the op as the user called it.
std::string NameOf(const OpInfo& op) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kCalled = {{
      {"spmd::full", "a tensor that is filled"},
      {"spmd::iota", "aten::arange"},
      {"spmd::random", "a random tensor"},
  }};
  const auto it = std::find_if(kCalled.begin(), kCalled.end(),
                               [&](const auto& row) { return row.first == op.name; });
  return it == kCalled.end() ? op.name : std::string(it->second);
}

// Adds the non-tensor arguments in which the keys differ.
void AddArguments(const Record& theirs, const Record& mine, std::vector<std::string>& found) {
  for (size_t i = 0; i < mine.args.size(); ++i) {
    const ArgInfo& info = mine.op->args[i];
    if (info.kind != ArgKind::kOther) continue;
    const c10::IValue &before = theirs.args[i], &now = mine.args[i];
    const bool runtime = IsRuntimeValue(info, now);
    if (runtime == IsRuntimeValue(info, before) && SameArgument(before, now, !runtime)) continue;
    found.push_back(absl::StrCat(info.name, " ", AttrToString(AttrOf(info, before)), " → ",
                                 AttrToString(AttrOf(info, now))));
  }
}

// The names of the operands, in order.
std::vector<std::string> OperandNames(const Record& record) {
  std::vector<std::string> names;
  size_t group = 0;
  for (const ArgInfo& info : record.op->args) {
    if (info.kind == ArgKind::kTensor) {
      names.push_back(info.name);
    } else if (info.kind == ArgKind::kTensorList) {
      const int count = group < record.groups.size() ? record.groups[group++].size : 0;
      for (int k = 0; k < count; ++k) names.push_back(absl::StrCat(info.name, "[", k, "]"));
    }
  }
  return names;
}

MarkPtr MarkOf(const Recording& recording, TapeId id) {
  const int32_t input = recording.origins[id].input;
  return input < 0 ? nullptr : recording.input_marks[input];
}

void AddOperands(const Recording& theirs, const Recording& mine, size_t r,
                 std::vector<std::string>& found) {
  const Record &before = theirs.records[r], &now = mine.records[r];
  const std::vector<std::string> names = OperandNames(now);
  if (before.operands.size() != now.operands.size()) {
    found.push_back(absl::StrCat(before.operands.size(), " → ", now.operands.size(), " tensors"));
    return;
  }
  bool rewired = false;
  for (size_t k = 0; k < now.operands.size(); ++k) {
    const TapeId a = before.operands[k], b = now.operands[k];
    const std::string name = k < names.size() ? names[k] : absl::StrCat("operand ", k);
    if (a == kNoId || b == kNoId) {
      if (a != b) found.push_back(absl::StrCat(name, a == kNoId ? " is given" : " is left out"));
      continue;
    }
    const TensorType &old_type = theirs.types[a], &new_type = mine.types[b];
    if (!(old_type == new_type)) {
      found.push_back(absl::StrCat(name, " ", old_type.ToString(), " → ", new_type.ToString()));
    } else if (!SameMark(MarkOf(theirs, a), MarkOf(mine, b))) {
      found.push_back(absl::StrCat("the mark of ", name, " ", MarkToString(MarkOf(theirs, a)),
                                   " → ", MarkToString(MarkOf(mine, b))));
    } else {
      rewired |= a != b;
    }
  }
  if (found.empty() && rewired) found.emplace_back("its operands are other values");
}

void AddResults(const Recording& theirs, const Recording& mine, size_t r,
                std::vector<std::string>& found) {
  const Record &before = theirs.records[r], &now = mine.records[r];
  for (int k = 0; k < std::min(before.num_results, now.num_results); ++k) {
    const TensorType& old_type = theirs.types[before.first_result + k];
    const TensorType& new_type = mine.types[now.first_result + k];
    if (old_type == new_type) continue;
    found.push_back(absl::StrCat("its result ", old_type.ToString(), " → ", new_type.ToString()));
  }
}

// Where a value comes from. Calls and inputs are counted from 1.
std::string OriginToString(const Recording& recording, TapeId id) {
  const Origin& origin = recording.origins[id];
  if (origin.record < 0) return absl::StrCat("input ", origin.input + 1);
  const Record& record = recording.records[origin.record];
  const std::string which = record.num_results == 1
                                ? "the result"
                                : absl::StrCat("result ", id - record.first_result + 1);
  return absl::StrCat(
      which, " of call ", origin.record + 1, ", ", record.op->name,
      record.source < 0 ? "" : absl::StrCat(" at ", recording.sources[record.source]));
}

}  // namespace

std::string MarkToString(const MarkPtr& mark) {
  return mark == nullptr ? "none"
                         : absl::StrCat(SpecToString(mark->spec), " on ", mark->mesh.ToString());
}

std::string DescribeDifference(const Recording& theirs, const Recording& mine, size_t r,
                               const std::string& which) {
  const Record &before = theirs.records[r], &now = mine.records[r];
  const std::string line = now.source >= 0 ? absl::StrCat(" (", mine.sources[now.source], ")") : "";
  const std::string op = absl::StrCat(NameOf(*now.op), line);
  if (before.op != now.op) {
    return absl::StrCat("op ", r, " is ", op, ", in ", which, " it is ", NameOf(*before.op));
  }
  std::vector<std::string> found;
  AddArguments(before, now, found);
  if (found.empty()) AddOperands(theirs, mine, r, found);
  if (found.empty()) AddResults(theirs, mine, r, found);
  if (found.empty() && before.task != now.task)
    found.emplace_back("another backward pass computes it");
  if (found.empty()) found.emplace_back("a value before it has another mark");
  return absl::StrCat("op ", r, ", ", op, ", differs from ", which, ": ",
                      absl::StrJoin(found, ", "));
}

std::vector<std::string> DescribeDetails(const Recording& recording, size_t r) {
  const Record& record = recording.records[r];
  std::vector<std::string> details;
  for (size_t i = 0; i < record.args.size(); ++i) {
    const ArgInfo& info = record.op->args[i];
    if (info.kind != ArgKind::kOther || IsRuntimeValue(info, record.args[i])) continue;
    details.push_back(absl::StrCat(info.name, " is ", AttrToString(AttrOf(info, record.args[i]))));
  }
  const std::vector<std::string> names = OperandNames(record);
  for (size_t k = 0; k < record.operands.size(); ++k) {
    const TapeId id = record.operands[k];
    if (id == kNoId) continue;
    const std::string name = k < names.size() ? names[k] : absl::StrCat("operand ", k);
    details.push_back(
        absl::StrCat("the mark of ", name, " is ", MarkToString(MarkOf(recording, id))));
    details.push_back(absl::StrCat(name, " is ", OriginToString(recording, id)));
  }
  details.emplace_back(record.task == 0 ? "it is in no backward pass"
                                        : absl::StrCat("it is in backward pass ", record.task));
  details.emplace_back(record.updates_first ? "it updates its first tensor"
                                            : "it makes a new tensor");
  return details;
}

}  // namespace spmd::trace
