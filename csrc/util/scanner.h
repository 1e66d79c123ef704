// SPDX-License-Identifier: Apache-2.0
// Reads the project's text forms from left to right. Every parser (expressions, shardings, grids,
// graphs, programs) is written on it, so that they agree on blanks, identifiers and numbers.
//
// A scanner may be passed from parser to parser; each consumes its own text and leaves the rest.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace spmd {

// [A-Za-z_][A-Za-z0-9_]*
bool IsIdentifier(absl::string_view text);

// Skips blanks (spaces and tabs, never newlines) before a token.
// Thread safety: thread-compatible. The text must outlive the scanner and the views it returns.
class Scanner {
 public:
  explicit Scanner(absl::string_view text) : text_(text), rest_(text) {}

  absl::string_view rest() const { return rest_; }
  size_t position() const { return text_.size() - rest_.size(); }
  // Moves to where position() was `position`, backwards or forwards.
  void Seek(size_t position) { rest_ = text_.substr(position); }

  void SkipBlanks();
  bool AtEnd();                           // only blanks are left
  char Peek();                            // the next character that is not a blank; '\0' at the end
  bool Looking(absl::string_view token);  // true if Consume would succeed
  bool Consume(absl::string_view token);  // takes `token` if it comes next
  // Takes `word` if it comes next as a whole word: "in" does not match "inner".
  bool ConsumeWord(absl::string_view word);
  // Takes the longest run of characters for which `accept` holds, which may be empty. Does not skip
  // blanks.
  absl::string_view TakeWhile(bool (*accept)(char));

  // All of these return InvalidArgument as written by Error().
  absl::Status Expect(absl::string_view token);
  absl::Status ExpectEnd();
  absl::StatusOr<absl::string_view> Identifier(absl::string_view what);
  absl::StatusOr<int64_t> Integer(absl::string_view what);  // with an optional sign
  // "0.25", "3", "1e-3"; no sign.
  absl::StatusOr<double> Number(absl::string_view what);
  // A "string" with \" \\ \n \t and \xHH escapes, as Quote writes it.
  absl::StatusOr<std::string> Quoted(absl::string_view what);

  // InvalidArgument "expected <what> at '<what is left>' in '<the text>'".
  absl::Status Error(absl::string_view what) const;

 private:
  absl::string_view text_;
  absl::string_view rest_;
};

// The shortest text that Scanner::Number reads back as `value`.
// Requires: `value` is positive and finite.
std::string NumberToString(double value);

// The inverse of Scanner::Quoted: printable ASCII between double quotes.
std::string Quote(absl::string_view text);

}  // namespace spmd
