// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/spec_text.h"

#include "csrc/util/status.h"

namespace spmd {
namespace {

// Parses "'data'", "0", "UNCONSTRAINED" or "None" into `entry`; "None" adds nothing.
absl::Status ParseItem(Scanner& in, SpecEntry& entry) {
  if (in.ConsumeWord("None")) return absl::OkStatus();
  if (in.ConsumeWord("UNCONSTRAINED")) {
    entry.unconstrained = true;
    return absl::OkStatus();
  }
  if (in.Consume("'")) {
    const absl::string_view name = in.TakeWhile([](char c) { return c != '\''; });
    entry.axes.emplace_back(std::string(name));
    return in.Expect("'");
  }
  SPMD_ASSIGN_OR_RETURN(const int64_t index, in.Integer("an axis"));
  entry.axes.emplace_back(index);
  return absl::OkStatus();
}

// Parses the items of a tuple behind its opening parenthesis; the last may be followed by a comma.
template <typename Parse>
absl::Status ParseItems(Scanner& in, Parse&& parse) {
  while (!in.Consume(")")) {
    SPMD_RETURN_IF_ERROR(parse());
    if (in.Consume(",")) continue;
    return in.Expect(")");
  }
  return absl::OkStatus();
}

// An item, or several between parentheses.
absl::Status ParseAxes(Scanner& in, SpecEntry& entry) {
  if (!in.Consume("(")) return ParseItem(in, entry);
  return ParseItems(in, [&] { return ParseItem(in, entry); });
}

absl::Status ParseEntry(Scanner& in, SpecEntry& entry) {
  if (!in.ConsumeWord("blocks")) return ParseAxes(in, entry);
  SPMD_RETURN_IF_ERROR(in.Expect("("));
  SPMD_ASSIGN_OR_RETURN(entry.blocks, in.Integer("a number of blocks"));
  if (entry.blocks < 1) return in.Error("one block or more");
  SPMD_RETURN_IF_ERROR(in.Expect(","));
  SPMD_RETURN_IF_ERROR(ParseAxes(in, entry));
  return in.Expect(")");
}

}  // namespace

absl::StatusOr<PartitionSpec> ParseSpecText(Scanner& in) {
  PartitionSpec spec;
  SPMD_RETURN_IF_ERROR(in.Expect("("));
  SPMD_RETURN_IF_ERROR(
      ParseItems(in, [&]() -> absl::Status { return ParseEntry(in, spec.emplace_back()); }));
  return spec;
}

}  // namespace spmd
