// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/cursor.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/util/status.h"

namespace spmd::ir {
namespace {

bool StartsIdentifier(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool ContinuesIdentifier(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; }

// Length of the quoted string at the start of `text`, quotes included; npos when it never ends.
size_t QuotedLength(absl::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return absl::string_view::npos;
}

absl::string_view WithoutComment(absl::string_view line) {
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      const size_t length = QuotedLength(line.substr(i));
      if (length == absl::string_view::npos) return line;  // the parser will complain
      i += length - 1;
    } else if (line[i] == '#' || absl::StartsWith(line.substr(i), "//")) {
      return line.substr(0, i);
    }
  }
  return line;
}

size_t LengthWhile(absl::string_view text, bool (*accept)(char)) {
  return std::find_if_not(text.begin(), text.end(), accept) - text.begin();
}

}  // namespace

std::vector<Line> SplitLines(absl::string_view text) {
  std::vector<Line> lines;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(WithoutComment(line));
    if (!line.empty()) lines.push_back({number, line});
  }
  return lines;
}

bool IsIdentifier(absl::string_view text) {
  return !text.empty() && StartsIdentifier(text[0]) &&
         LengthWhile(text, ContinuesIdentifier) == text.size();
}

bool IsNumberName(absl::string_view text) {
  constexpr size_t kMaxDigits = 9;
  return !text.empty() && text.size() <= kMaxDigits && (text[0] != '0' || text.size() == 1) &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

void Cursor::SkipSpaces() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

bool Cursor::AtEnd() {
  SkipSpaces();
  return rest_.empty();
}

bool Cursor::At(absl::string_view literal) {
  SkipSpaces();
  return absl::StartsWith(rest_, literal);
}

bool Cursor::Consume(absl::string_view literal) {
  if (!At(literal)) return false;
  rest_.remove_prefix(literal.size());
  return true;
}

bool Cursor::ConsumeAdjacent(absl::string_view literal) {
  if (!absl::StartsWith(rest_, literal)) return false;
  rest_.remove_prefix(literal.size());
  return true;
}

bool Cursor::ConsumeWord(absl::string_view word) {
  if (!At(word)) return false;
  if (rest_.size() > word.size() && ContinuesIdentifier(rest_[word.size()])) return false;
  rest_.remove_prefix(word.size());
  return true;
}

absl::Status Cursor::Expect(absl::string_view literal) {
  if (Consume(literal)) return absl::OkStatus();
  return Expected(absl::StrCat("'", literal, "'"));
}

absl::Status Cursor::ExpectEnd() {
  return AtEnd() ? absl::OkStatus() : Expected("the end of the line");
}

absl::StatusOr<std::string> Cursor::Identifier(absl::string_view what) {
  SkipSpaces();
  if (rest_.empty() || !StartsIdentifier(rest_[0])) return Expected(what);
  const size_t length = LengthWhile(rest_, ContinuesIdentifier);
  std::string name(rest_.substr(0, length));
  rest_.remove_prefix(length);
  return name;
}

absl::StatusOr<int64_t> Cursor::Integer(absl::string_view what) {
  SkipSpaces();
  const size_t sign = !rest_.empty() && rest_[0] == '-' ? 1 : 0;
  const size_t length =
      sign + LengthWhile(rest_.substr(sign), [](char c) -> bool { return absl::ascii_isdigit(c); });
  int64_t value = 0;
  if (!absl::SimpleAtoi(rest_.substr(0, length), &value)) return Expected(what);
  rest_.remove_prefix(length);
  return value;
}

absl::StatusOr<std::string> Cursor::ValueName() {
  if (!Consume("%")) return Expected("a value like %x");
  const size_t length = LengthWhile(rest_, ContinuesIdentifier);
  const absl::string_view name = rest_.substr(0, length);
  if (!IsIdentifier(name) && !IsNumberName(name)) {
    return Error(absl::StrCat("'%", name, "' is no name; after '%' comes an identifier or a number",
                              " of at most nine digits"));
  }
  rest_.remove_prefix(length);
  return std::string(name);
}

absl::StatusOr<std::string> Cursor::OpName() {
  SkipSpaces();
  const size_t length =
      LengthWhile(rest_, [](char c) { return ContinuesIdentifier(c) || c == ':'; });
  if (length == 0) return Expected("the name of an op, like aten::add.Tensor");
  std::string name(rest_.substr(0, length));
  rest_.remove_prefix(length);
  return name;
}

absl::StatusOr<std::string> Cursor::QuotedString() {
  if (!At("\"")) return Expected("a quoted string");
  const size_t length = QuotedLength(rest_);
  if (length == absl::string_view::npos) return Error("a quoted string does not end");
  std::string value, error;
  if (!absl::CUnescape(rest_.substr(1, length - 2), &value, &error)) {
    return Error(absl::StrCat("bad quoted string ", rest_.substr(0, length), ": ", error));
  }
  rest_.remove_prefix(length);
  return value;
}

absl::StatusOr<absl::string_view> Cursor::Until(absl::string_view stops) {
  SkipSpaces();
  std::string closers;  // of the brackets that are open
  size_t i = 0;
  for (; i < rest_.size(); ++i) {
    const char c = rest_[i];
    if (closers.empty() && absl::StrContains(stops, c)) break;
    if (c == '"') {
      const size_t length = QuotedLength(rest_.substr(i));
      if (length == absl::string_view::npos) return Error("a quoted string does not end");
      i += length - 1;
    } else if (c == '(' || c == '[' || c == '{') {
      closers.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (closers.empty() || closers.back() != c) {
        return Error(absl::StrCat("unbalanced '", absl::string_view(&c, 1), "'"));
      }
      closers.pop_back();
    }
  }
  if (!closers.empty()) return Error(absl::StrCat("'", closers.substr(closers.size() - 1), "' is missing"));
  const absl::string_view found = absl::StripTrailingAsciiWhitespace(rest_.substr(0, i));
  rest_.remove_prefix(i);
  return found;
}

absl::StatusOr<absl::string_view> Cursor::Group() {
  SkipSpaces();
  SPMD_CHECK(!rest_.empty() && absl::StrContains("([{", rest_[0]), "no group at '", rest_, "'");
  Cursor inside(*this);
  const char open = rest_[0];
  const char close = open == '(' ? ')' : open == '[' ? ']' : '}';
  inside.rest_.remove_prefix(1);
  absl::StatusOr<absl::string_view> text = inside.Until(absl::string_view(&close, 1));
  if (!text.ok()) return text.status();
  if (inside.rest_.empty()) {
    return Error(absl::StrCat("'", absl::string_view(&close, 1), "' is missing"));
  }
  const absl::string_view group = rest_.substr(0, rest_.size() - inside.rest_.size() + 1);
  rest_.remove_prefix(group.size());
  return group;
}

absl::Status Cursor::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", message));
}

absl::Status Cursor::Expected(absl::string_view what) {
  if (AtEnd()) return Error(absl::StrCat("expected ", what, ", got the end of the line"));
  constexpr size_t kMaxShown = 40;
  return Error(absl::StrCat("expected ", what, ", got '", rest_.substr(0, kMaxShown),
                            rest_.size() > kMaxShown ? "…'" : "'"));
}

absl::Status Cursor::Locate(const absl::Status& status) const {
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat("line ", line_, ": ",
                                                                status.message()));
}

}  // namespace spmd::ir
