// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/starts.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "csrc/trace/tape/recording.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Args = std::vector<c10::IValue>;

// True if the argument counts from the beginning. From which element a number below 0 counts
// depends on the tensor.
bool CountsFromTheBeginning(const c10::IValue& number) {
  return number.isInt() && number.toInt() >= 0;
}

// True if the slice that starts with argument `start` takes elements one after the other.
bool IsRun(const Args& args, size_t start) {
  return args[start + 1].isInt() && args[start + 2].toInt() == 1;
}

// True if the call's start can be passed at run time.
bool CanBePassed(const Record& record) {
  const auto [use, number] = record.op->start;
  const Args& args = record.args;
  switch (use) {
    case StartUse::kNone:
      return false;
    case StartUse::kLowerTriangle:
    case StartUse::kUpperTriangle:
      return args[number].isInt();
    case StartUse::kRoll:
      return record.num_results == 1;
    case StartUse::kNarrow:
    case StartUse::kSelect:
    case StartUse::kSelectInto:
      return args[number - 1].isInt() && CountsFromTheBeginning(args[number]);
    case StartUse::kSlice:
    case StartUse::kSliceInto:
      return args[number - 1].isInt() && CountsFromTheBeginning(args[number]) &&
             IsRun(args, number);
    // Gradients have the sizes of the whole among their arguments, so they may count from the end,
    // as autograd has it for x[-k-3 : -k].
    case StartUse::kSelectGradient:
      return args[number - 1].isInt() && args[number].isInt();
    case StartUse::kSliceGradient:
      return args[number - 1].isInt() && args[number].isInt() && IsRun(args, number);
  }
  return false;
}

int64_t Wrapped(int64_t i, int64_t size) { return i < 0 ? i + size : i; }

}  // namespace

uint64_t StartArguments(const Record& record) {
  if (!CanBePassed(record)) return 0;
  const auto [use, number] = record.op->start;
  const bool has_end =
      use == StartUse::kSlice || use == StartUse::kSliceInto || use == StartUse::kSliceGradient;
  return uint64_t{has_end ? 0b11u : 0b1u} << number;
}

std::vector<int> RecordsWithStarts(const std::vector<Record>& records) {
  std::vector<int> found;
  for (size_t r = 0; r < records.size(); ++r) {
    if (CanBePassed(records[r])) found.push_back(static_cast<int>(r));
  }
  return found;
}

bool SameStarts(const Record& record, const Args& a, const Args& b) {
  const uint64_t arguments = StartArguments(record);
  for (size_t i = 0; i < record.args.size(); ++i) {
    if ((arguments >> i & 1) != 0 && !SameArgument(a[i], b[i], /*value=*/true)) return false;
  }
  return true;
}

int64_t ReachOf(int64_t shift, int64_t size) {
  constexpr int64_t kStep = 16;
  if (size == 0 || shift % size == 0) return 0;
  shift = (shift % size + size) % size;
  if (shift > size / 2) shift -= size;
  int64_t reach = size;
  while (reach % kStep == 0 && reach / kStep >= std::abs(shift)) reach /= kStep;
  return reach == size || shift > 0 ? reach : -reach;
}

bool HaveSameReach(const Record& record, const TensorType& operand, const Args& a, const Args& b) {
  const auto [use, number] = record.op->start;
  if (use != StartUse::kRoll) return true;
  const std::vector<int64_t> dims = record.args[number + 1].toIntVector();
  const std::vector<int64_t> mine = a[number].toIntVector(), theirs = b[number].toIntVector();
  for (size_t i = 0; i < mine.size(); ++i) {
    const int64_t size =
        dims.empty() ? operand.NumElements() : operand.dims[Wrapped(dims[i], operand.rank())];
    if (ReachOf(mine[i], size) != ReachOf(theirs[i], size)) return false;
  }
  return true;
}

std::string StartToString(const Record& record) {
  return absl::StrCat(record.op->args[record.op->start.number].name, " of ", record.op->name);
}

void AppendStarts(const Record& record, const Args& args, std::vector<c10::Scalar>& scalars) {
  SPMD_CHECK(CanBePassed(record), record.op->name, " has no start");
  const auto [use, number] = record.op->start;
  const c10::IValue& start = args[number];
  if (use == StartUse::kSelectGradient || use == StartUse::kSliceGradient) {
    const std::vector<int64_t> sizes = args[number - 2].toIntVector();
    const int64_t dim = args[number - 1].toInt();
    const int64_t size = sizes[Wrapped(dim, static_cast<int64_t>(sizes.size()))];
    scalars.emplace_back(std::clamp<int64_t>(Wrapped(start.toInt(), size), 0, size));
  } else if (start.isInt()) {
    scalars.emplace_back(start.toInt());
  } else {
    for (const int64_t n : start.toIntVector()) scalars.emplace_back(n);
  }
}

}  // namespace spmd::trace
