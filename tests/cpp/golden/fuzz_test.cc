// SPDX-License-Identifier: Apache-2.0
// Whatever text spmd-opt is given, it prints something or says what is wrong: no exception, no
// crash. The texts are those below tests/golden, with tokens changed, dropped, doubled and swapped.
//
// SPMD_FUZZ="<mutations> <seed> [<directory of further texts>]" runs others than the 3000 of the
// test; with SPMD_FUZZ_TEXT=<file> each text is written there first, so that a crash leaves it.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/cpp/ir/mutated.h"
#include "tools/spmd_opt/steps.h"

namespace spmd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps[] = {
    "print",     "fingerprint",    "interpret",     "check",
    "finish",    "finish,traffic", "finish,memory", "warnings",
    "explain=0", "propagate",      "localise",      "simplify,propagate,decompose,choose"};
constexpr const char* kNumbers[] = {"0",
                                    "1",
                                    "-1",
                                    "2",
                                    "3",
                                    "7",
                                    "64",
                                    "1000000",
                                    "4294967296",
                                    "9223372036854775807",
                                    "-9223372036854775808",
                                    "99999999999999999999999",
                                    "1e308",
                                    "nan",
                                    "1.5",
                                    "true",
                                    "none",
                                    "[1,2]",
                                    "\"x\"",
                                    "$0"};

std::vector<std::string> Corpus(const std::string& directory) {
  std::set<fs::path> files;  // in the same order everywhere
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.path().extension() == ".txt") files.insert(entry.path());
  }
  std::vector<std::string> texts;
  for (const fs::path& file : files) {
    std::ostringstream all;
    all << std::ifstream(file).rdbuf();
    std::vector<std::string> lines;
    for (absl::string_view line : absl::StrSplit(all.str(), '\n')) {
      if (line == "----") break;
      if (!absl::StartsWith(line, "RUN:")) lines.emplace_back(line);
    }
    texts.push_back(absl::StrJoin(lines, "\n"));
  }
  return texts;
}

// Words, runs of blanks, single characters.
std::vector<std::string> TokensOf(const std::string& text) {
  const auto kind = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' ? 1 : std::isspace(c) ? 2 : 0;
  };
  std::vector<std::string> tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool joins = i > 0 && kind(text[i]) != 0 && kind(text[i]) == kind(text[i - 1]);
    if (joins) {
      tokens.back() += text[i];
    } else {
      tokens.emplace_back(1, text[i]);
    }
  }
  return tokens;
}

class Fuzzer {
  // First, since their types are deduced.
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  template <typename List>
  decltype(auto) Any(List& list) {
    return list[Below(static_cast<int>(std::size(list)))];
  }

 public:
  Fuzzer(std::vector<std::string> corpus, uint32_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  std::string Text() {
    const std::string& text = Any(corpus_);
    const int way = Below(20);
    if (way == 0) return text.substr(0, Below(static_cast<int>(text.size()) + 1));
    if (way <= 2) return ir::Mutated(text, random_);
    std::vector<std::string> tokens = TokensOf(text);
    for (int edits = 1 + Below(4); edits > 0 && !tokens.empty(); --edits) Edit(tokens);
    return absl::StrJoin(tokens, "");
  }
  std::string Steps() { return Any(kSteps); }

 private:
  void Edit(std::vector<std::string>& tokens) {
    const int at = Below(static_cast<int>(tokens.size()));
    switch (Below(6)) {
      case 0:
        tokens.erase(tokens.begin() + at);
        break;
      case 1: {
        std::string token = Any(tokens);
        tokens.insert(tokens.begin() + at, std::move(token));
        break;
      }
      case 2: {
        std::string token = Any(tokens);
        tokens[at] = std::move(token);
        break;
      }
      case 3:
        std::swap(tokens[at], Any(tokens));
        break;
      default:
        ChangeNumber(tokens);
    }
  }

  void ChangeNumber(std::vector<std::string>& tokens) {
    std::vector<int> numbers;
    for (size_t i = 0; i < tokens.size(); ++i) {
      int64_t ignored;
      const bool number = absl::SimpleAtoi(tokens[i], &ignored);
      if (number || tokens[i] == "true" || tokens[i] == "false" || tokens[i] == "none") {
        numbers.push_back(static_cast<int>(i));
      }
    }
    if (!numbers.empty()) tokens[Any(numbers)] = Any(kNumbers);
  }

  std::vector<std::string> corpus_;
  std::mt19937 random_;
};

struct Settings {
  int mutations = 3000;
  uint32_t seed = 1;
  std::vector<std::string> corpus = Corpus(SPMD_GOLDEN_DIR);
};

Settings SettingsFromEnvironment() {
  Settings settings;
  const char* given = std::getenv("SPMD_FUZZ");
  if (given == nullptr) return settings;
  std::string directory;
  std::istringstream(given) >> settings.mutations >> settings.seed >> directory;
  if (directory.empty()) return settings;
  for (std::string& text : Corpus(directory)) settings.corpus.push_back(std::move(text));
  return settings;
}

void WriteDown(const std::string& text, const std::string& steps) {
  if (const char* file = std::getenv("SPMD_FUZZ_TEXT")) {
    std::ofstream(file) << "# " << steps << "\n" << text;
  }
}

// Runs the text; records a failure if that ends in an exception or an internal error. Returns
// whether the text was run, not refused.
bool IsRun(const std::string& text, const std::string& steps, const std::string& which) {
  WriteDown(text, steps);
  const auto fail = [&](absl::string_view what) {
    ADD_FAILURE() << which << ", --pass=" << steps << ": " << what << "\n" << text;
  };
  try {
    const auto result = opt::RunSteps(text, opt::SplitSteps(steps));
    const absl::string_view message = result.status().message();
    if (absl::StrContains(message, "internal error") || absl::StrContains(message, "std::")) {
      fail(message);
    }
    return result.ok();
  } catch (const std::exception& e) {
    fail(e.what());
    return false;
  }
}

TEST(Fuzz, AnyTextIsRunOrRefused) {
  const Settings settings = SettingsFromEnvironment();
  ASSERT_GT(settings.corpus.size(), 50u);
  Fuzzer fuzzer(settings.corpus, settings.seed);
  int ran = 0;
  for (int i = 0; i < settings.mutations; ++i) {
    const std::string text = fuzzer.Text(), steps = fuzzer.Steps();
    ran += IsRun(text, steps, absl::StrCat("mutation ", i));
  }
  EXPECT_GT(ran, settings.mutations / 20);
  EXPECT_GT(settings.mutations - ran, settings.mutations / 20);
}

// Each number of each text in turn. What is computed of them may not overflow, which only a
// sanitizer sees. With SPMD_FUZZ every step is run on each, else one.
TEST(Fuzz, AnyNumberIsRunOrRefused) {
  const bool every_step = std::getenv("SPMD_FUZZ") != nullptr;
  int64_t turn = 0;
  for (const std::string& text : SettingsFromEnvironment().corpus) {
    const std::vector<std::string> tokens = TokensOf(text);
    for (size_t i = 0; i < tokens.size(); ++i) {
      int64_t ignored;
      if (!absl::SimpleAtoi(tokens[i], &ignored)) continue;
      for (const char* number : {"9223372036854775807", "-9223372036854775808"}) {
        std::vector<std::string> changed = tokens;
        changed[i] = number;
        const std::string with = absl::StrJoin(changed, "");
        const auto run = [&](const char* steps) { IsRun(with, steps, absl::StrCat("token ", i)); };
        if (every_step) {
          for (const char* steps : kSteps) run(steps);
        } else {
          run(kSteps[turn++ % std::size(kSteps)]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace spmd
