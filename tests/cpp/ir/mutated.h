// SPDX-License-Identifier: Apache-2.0
// Text for fuzzing the parsers of graphs and programs. Header only, so that tests of other folders
// can use it.
#pragma once

#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace spmd::ir {

inline constexpr const char* kTextWords[] = {
    "%",
    "%0",
    "%x",
    "_",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    ":",
    "=",
    "@m",
    "@m~",
    "@m=",
    "->",
    "unreduced",
    "unreduced(sum){data}",
    "{data},{}",
    "f32[2,3]",
    "f32[",
    "i64[9223372036854775807]",
    "graph {",
    "program {",
    "return",
    "mesh @m [data=2]",
    "scalar $0: float",
    "updates(0)",
    "task(-1)",
    "cut {0: data}",
    "at \"x\"",
    "\"",
    "\\",
    "#",
    "//",
    "none",
    "true",
    "1e5",
    "-inf",
    "nan",
    "$0",
    "$99999999999",
    "complex(1,2)",
    "start(o0,1)*2-1",
    "max(",
    "devices=[1,0]",
    "chunk=3",
    "?",
    "-9223372036854775808",
    "99999999999999999999",
    "1e999",
    "\xff",
    "free %0",
    "call",
    "all_reduce",
};

// `text` after a few random edits: characters changed, removed or doubled, lines moved or dropped,
// words of the grammar put in.
inline std::string Mutated(std::string text, std::mt19937& random) {
  const auto below = [&random](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  for (int edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
    const int at = below(static_cast<int>(text.size()));
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text.erase(at, 1 + below(4));
        break;
      case 2:
        text.insert(at, text.substr(at, 1 + below(8)));
        break;
      case 3:
      case 4:
        text.insert(at, kTextWords[below(static_cast<int>(std::size(kTextWords)))]);
        break;
      default: {
        std::vector<std::string> lines = absl::StrSplit(text, '\n');
        const int count = static_cast<int>(lines.size());
        std::swap(lines[below(count)], lines[below(count)]);
        if (below(2) == 0) lines.erase(lines.begin() + below(count));
        text = absl::StrJoin(lines, "\n");
      }
    }
  }
  return text;
}

}  // namespace spmd::ir
