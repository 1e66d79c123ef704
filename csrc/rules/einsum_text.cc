// SPDX-License-Identifier: Apache-2.0
// Parses einsum text.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/rules/einsum.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

bool IsName(absl::string_view word) {
  if (word.empty() || absl::ascii_isdigit(word[0])) return false;
  return std::all_of(word.begin(), word.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<EinsumPattern> Parse() {
    const std::vector<absl::string_view> sides = absl::StrSplit(text_, "->");
    if (sides.size() != 2) return Error("expected exactly one '->'");
    if (!absl::StripAsciiWhitespace(sides[0]).empty()) {
      SPMD_RETURN_IF_ERROR(ParseTensors(sides[0], &pattern_.operands));
    }
    SPMD_RETURN_IF_ERROR(ParseTensors(sides[1], &pattern_.results));
    for (const EinsumTensor& r : pattern_.results) {
      if (r.added) return Error("'+' is for operands only");
    }
    for (const EinsumTensor& o : pattern_.operands) {
      if (o.same) return Error("'=' is for results only");
    }
    return std::move(pattern_);
  }

 private:
  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(absl::StrCat("einsum text \"", text_, "\": ", what...));
  }

  absl::Status ParseTensors(absl::string_view text, std::vector<EinsumTensor>* tensors) {
    for (absl::string_view tensor : absl::StrSplit(text, ',')) {
      tensors->emplace_back();
      SPMD_RETURN_IF_ERROR(ParseTensor(absl::StripAsciiWhitespace(tensor), &tensors->back()));
    }
    return absl::OkStatus();
  }

  absl::Status ParseTensor(absl::string_view text, EinsumTensor* tensor) {
    if (!text.empty() && text.front() == '+') {
      tensor->added = true;
      text = absl::StripLeadingAsciiWhitespace(text.substr(1));
    }
    if (!text.empty() && text.front() == '=') {
      tensor->same = true;
      text = absl::StripLeadingAsciiWhitespace(text.substr(1));
    }
    if (!text.empty() && text.back() == '?') {
      tensor->optional = true;
      text = absl::StripTrailingAsciiWhitespace(text.substr(0, text.size() - 1));
    }
    if (text == "()") return absl::OkStatus();
    while (!text.empty()) {
      SPMD_RETURN_IF_ERROR(ParseDim(TakeWord(&text), tensor));
      text = absl::StripLeadingAsciiWhitespace(text);
    }
    return absl::OkStatus();
  }

  // Takes the next word or parenthesised group from the front of `text`.
  static absl::string_view TakeWord(absl::string_view* text) {
    const char close = text->front() == '(' ? ')' : ' ';
    size_t end = text->find(close);
    end = end == absl::string_view::npos ? text->size() : end + (close == ')' ? 1 : 0);
    absl::string_view word = text->substr(0, end);
    text->remove_prefix(end);
    return word;
  }

  absl::Status ParseDim(absl::string_view word, EinsumTensor* tensor) {
    EinsumDim dim;
    if (word == "...") {
      if (tensor->ellipsis >= 0) return Error("'...' occurs twice in one tensor");
      tensor->ellipsis = static_cast<int>(tensor->dims.size());
      dim.ellipsis = true;
    } else if (word.front() == '(') {
      if (word.back() != ')') return Error("'(' without ')'");
      for (absl::string_view part :
           absl::StrSplit(word.substr(1, word.size() - 2), ' ', absl::SkipEmpty())) {
        SPMD_RETURN_IF_ERROR(AddName(part, &dim));
      }
      if (dim.names.empty()) return Error("'", word, "' is empty");
    } else if (word != "1") {
      SPMD_RETURN_IF_ERROR(AddName(word, &dim));
    }
    for (int name : dim.names) {
      for (const EinsumDim& other : tensor->dims) {
        if (std::count(other.names.begin(), other.names.end(), name) > 0) {
          return Error("'", pattern_.names[name], "' occurs twice in one tensor");
        }
      }
    }
    tensor->dims.push_back(std::move(dim));
    return absl::OkStatus();
  }

  absl::Status AddName(absl::string_view word, EinsumDim* dim) {
    const bool whole = word.size() > 2 && word.front() == '[' && word.back() == ']';
    const absl::string_view name = whole ? word.substr(1, word.size() - 2) : word;
    if (!IsName(name)) return Error("'", word, "' is not a factor");
    const std::string key(name.data(), name.size());
    auto it = std::find(pattern_.names.begin(), pattern_.names.end(), key);
    const int index = static_cast<int>(it - pattern_.names.begin());
    if (it == pattern_.names.end()) {
      pattern_.names.push_back(key);
      pattern_.whole.push_back(false);
      pattern_.reduce.push_back(ReduceKind::kSum);
    }
    if (whole) pattern_.whole[index] = true;
    if (std::count(dim->names.begin(), dim->names.end(), index) > 0) {
      return Error("'", word, "' occurs twice in one dimension");
    }
    dim->names.push_back(index);
    return absl::OkStatus();
  }

  absl::string_view text_;
  EinsumPattern pattern_;
};

}  // namespace

absl::StatusOr<EinsumPattern> ParseEinsum(absl::string_view text) { return Parser(text).Parse(); }

}  // namespace spmd::rules
