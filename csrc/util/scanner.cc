// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/scanner.h"

#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

bool StartsWord(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool InWord(char c) { return absl::ascii_isalnum(c) || c == '_'; }
bool IsDigit(char c) { return absl::ascii_isdigit(c); }

// The first line of `text`, cut to 60 characters, so that messages stay readable when it is a file.
std::string Shorten(absl::string_view text) {
  const size_t line_end = text.find('\n');
  absl::string_view line = text.substr(0, line_end);
  if (line.size() <= 60) return std::string(line);
  return absl::StrCat(line.substr(0, 60), "…");
}

}  // namespace

bool IsIdentifier(absl::string_view text) {
  if (text.empty() || !StartsWord(text[0])) return false;
  for (char c : text) {
    if (!InWord(c)) return false;
  }
  return true;
}

void Scanner::SkipBlanks() {
  while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t')) rest_.remove_prefix(1);
}

bool Scanner::AtEnd() {
  SkipBlanks();
  return rest_.empty();
}

char Scanner::Peek() {
  SkipBlanks();
  return rest_.empty() ? '\0' : rest_[0];
}

bool Scanner::Looking(absl::string_view token) {
  SkipBlanks();
  return absl::StartsWith(rest_, token);
}

bool Scanner::Consume(absl::string_view token) {
  if (!Looking(token)) return false;
  rest_.remove_prefix(token.size());
  return true;
}

bool Scanner::ConsumeWord(absl::string_view word) {
  if (!Looking(word)) return false;
  if (rest_.size() > word.size() && InWord(rest_[word.size()])) return false;
  rest_.remove_prefix(word.size());
  return true;
}

absl::string_view Scanner::TakeWhile(bool (*accept)(char)) {
  size_t n = 0;
  while (n < rest_.size() && accept(rest_[n])) ++n;
  absl::string_view taken = rest_.substr(0, n);
  rest_.remove_prefix(n);
  return taken;
}

absl::Status Scanner::Expect(absl::string_view token) {
  if (Consume(token)) return absl::OkStatus();
  return Error(absl::StrCat("'", token, "'"));
}

absl::Status Scanner::ExpectEnd() {
  if (AtEnd()) return absl::OkStatus();
  return Error("the end");
}

absl::StatusOr<absl::string_view> Scanner::Identifier(absl::string_view what) {
  if (!StartsWord(Peek())) return Error(what);
  return TakeWhile(InWord);
}

absl::StatusOr<int64_t> Scanner::Integer(absl::string_view what) {
  SkipBlanks();
  const absl::string_view before = rest_;
  if (!rest_.empty() && (rest_[0] == '-' || rest_[0] == '+')) rest_.remove_prefix(1);
  TakeWhile(IsDigit);
  int64_t value = 0;
  if (absl::SimpleAtoi(before.substr(0, before.size() - rest_.size()), &value)) return value;
  rest_ = before;
  return Error(what);
}

absl::StatusOr<double> Scanner::Number(absl::string_view what) {
  SkipBlanks();
  const absl::string_view before = rest_;
  TakeWhile(IsDigit);
  if (absl::ConsumePrefix(&rest_, ".")) TakeWhile(IsDigit);
  const absl::string_view mantissa_end = rest_;
  if (absl::ConsumePrefix(&rest_, "e")) {
    if (!absl::ConsumePrefix(&rest_, "-")) absl::ConsumePrefix(&rest_, "+");
    if (TakeWhile(IsDigit).empty()) rest_ = mantissa_end;
  }
  double value = 0;
  if (absl::SimpleAtod(before.substr(0, before.size() - rest_.size()), &value)) return value;
  rest_ = before;
  return Error(what);
}

absl::StatusOr<std::string> Scanner::Quoted(absl::string_view what) {
  if (!Consume("\"")) return Error(what);
  std::string out;
  while (!rest_.empty() && rest_[0] != '"') {
    if (rest_[0] != '\\') {
      out.push_back(rest_[0]);
      rest_.remove_prefix(1);
      continue;
    }
    if (rest_.size() < 2) break;
    const char escape = rest_[1];
    if (escape == 'x') {
      const absl::string_view digits = rest_.substr(2, 2);
      if (digits.size() < 2 || !absl::ascii_isxdigit(digits[0]) ||
          !absl::ascii_isxdigit(digits[1])) {
        return Error("two hexadecimal digits after '\\x'");
      }
      auto value = [](char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; };
      out.push_back(static_cast<char>(value(digits[0]) * 16 + value(digits[1])));
      rest_.remove_prefix(4);
      continue;
    }
    if (escape == 'n') {
      out.push_back('\n');
    } else if (escape == 't') {
      out.push_back('\t');
    } else if (escape == '"' || escape == '\\') {
      out.push_back(escape);
    } else {
      return Error("an escape: \\\" \\\\ \\n \\t or \\xHH");
    }
    rest_.remove_prefix(2);
  }
  SPMD_RETURN_IF_ERROR(Expect("\""));
  return out;
}

absl::Status Scanner::Error(absl::string_view what) const {
  if (rest_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", what, " at the end of '", Shorten(text_), "'"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", what, " at '", Shorten(rest_), "' in '", Shorten(text_), "'"));
}

std::string NumberToString(double value) {
  char buffer[40];
  const std::to_chars_result end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

std::string Quote(absl::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      out.push_back(c);
    } else {
      out += absl::StrFormat("\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return out + "\"";
}

}  // namespace spmd
