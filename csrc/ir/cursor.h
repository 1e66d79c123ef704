// SPDX-License-Identifier: Apache-2.0
// Reading the text forms: a file as lines, a line as tokens. Shared by the parsers of graphs and of
// programs, both of which hold one statement per line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace spmd::ir {

struct Line {
  int number = 0;          // from 1
  absl::string_view text;  // without comment and surrounding spaces; never empty
};

// The lines of `text` that say something. '#' and '//' outside quotes start a comment. The views
// point into `text`.
std::vector<Line> SplitLines(absl::string_view text);

// [A-Za-z_][A-Za-z0-9_.]*, as names of values and grids.
bool IsIdentifier(absl::string_view text);
// At most nine digits without a leading zero.
bool IsNumberName(absl::string_view text);

// A place in one line. Methods skip spaces before what they read, except where they say otherwise.
// Every error is InvalidArgument and starts "line <n>: ".
class Cursor {
 public:
  explicit Cursor(const Line& line) : line_(line.number), rest_(line.text) {}

  bool AtEnd();
  bool At(absl::string_view literal);      // does it come next?
  bool Consume(absl::string_view literal);  // true, and past it, if it came next
  // As Consume, but the literal must follow at once: no space is skipped.
  bool ConsumeAdjacent(absl::string_view literal);
  // As Consume, for a word: what follows it must not continue an identifier.
  bool ConsumeWord(absl::string_view word);
  absl::Status Expect(absl::string_view literal);
  absl::Status ExpectEnd();

  // Both may be told what they look for, for the message: "the name of a mesh".
  absl::StatusOr<std::string> Identifier(absl::string_view what);
  absl::StatusOr<int64_t> Integer(absl::string_view what);
  // The name after a '%': an identifier or a number.
  absl::StatusOr<std::string> ValueName();
  // An operator's name: letters, digits, '_', '.', ':'.
  absl::StatusOr<std::string> OpName();
  absl::StatusOr<std::string> QuotedString();

  // The longest run of text in which brackets balance and that none of `stops` ends at depth 0
  // outside quotes; without the spaces around it. Errors: an unbalanced bracket or quote.
  absl::StatusOr<absl::string_view> Until(absl::string_view stops);
  // A bracketed group, with its brackets. Requires: At(one of "([{").
  absl::StatusOr<absl::string_view> Group();

  int line() const { return line_; }
  absl::string_view rest() const { return rest_; }
  absl::Status Error(absl::string_view message) const;
  // "expected <what>, got '<the rest of the line>'".
  absl::Status Expected(absl::string_view what);
  // `status` with "line <n>: " in front, OK as it is.
  absl::Status Locate(const absl::Status& status) const;

 private:
  void SkipSpaces();

  int line_;
  absl::string_view rest_;
};

}  // namespace spmd::ir
