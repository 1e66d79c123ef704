// SPDX-License-Identifier: Apache-2.0
// Runs every file below tests/golden:
//
//   // checks: one sentence
//   RUN: finish, traffic        steps as of spmd-opt
//   graph { … }
//   ----
//   the expected text; "error: …" where a step gives an error
//
// SPMD_UPDATE_GOLDEN=1 rewrites what is expected.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/cpp/golden/diff.h"
#include "tools/spmd_opt/steps.h"

namespace spmd {
namespace {

constexpr char kSeparator[] = "----\n";

struct GoldenFile {
  std::string checks;  // what it says it checks
  std::vector<std::string> steps;
  std::string head;  // all up to the separator, which is left as it is
  std::string input;
  std::string expected;
};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Null when a part is missing.
std::optional<GoldenFile> ParseFile(const std::string& text) {
  GoldenFile file;
  const size_t separator = text.find(absl::StrCat("\n", kSeparator));
  file.head = separator == std::string::npos ? text : text.substr(0, separator + 1);
  if (separator != std::string::npos) {
    file.expected = text.substr(separator + 1 + sizeof(kSeparator) - 1);
  }
  const size_t run = file.head.find("RUN:");
  if (run == std::string::npos) return std::nullopt;
  for (absl::string_view line : absl::StrSplit(file.head.substr(0, run), '\n')) {
    if (absl::ConsumePrefix(&line, "// checks:")) file.checks = std::string(line);
  }
  const size_t end = std::min(file.head.find('\n', run), file.head.size());
  file.steps = opt::SplitSteps(absl::string_view(file.head).substr(run + 4, end - run - 4));
  file.input = file.head.substr(end);
  // Lines of the input are counted from the first one of the file.
  file.input.insert(0, std::count(file.head.begin(), file.head.begin() + end, '\n'), '\n');
  return file;
}

std::vector<std::string> GoldenFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SPMD_GOLDEN_DIR)) {
    if (entry.path().extension() == ".txt") {
      files.push_back(std::filesystem::relative(entry.path(), SPMD_GOLDEN_DIR).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool Updating() {
  const char* update = std::getenv("SPMD_UPDATE_GOLDEN");
  return update != nullptr && std::string(update) == "1";
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, GivesTheExpectedText) {
  const std::string path = absl::StrCat(SPMD_GOLDEN_DIR, "/", GetParam());
  const auto file = ParseFile(ReadFile(path));
  ASSERT_TRUE(file.has_value()) << path << " has no 'RUN:' line";
  EXPECT_FALSE(file->checks.empty()) << path << " does not say what it checks: '// checks: …'";
  const auto result = opt::RunSteps(file->input, file->steps);
  const std::string actual =
      result.ok() ? *result : absl::StrCat("error: ", std::string(result.status().message()), "\n");
  if (actual == file->expected) return;
  if (Updating()) {
    std::ofstream(path) << file->head << kSeparator << actual;
    return;
  }
  ADD_FAILURE() << path << "\n"
                << LineDiff(file->expected, actual)
                << "SPMD_UPDATE_GOLDEN=1 takes the new text as expected.";
}

// Whatever a pass makes of a graph, the interpreted results of all devices are the graph's.
TEST_P(Golden, ComputesWhatTheGraphSays) {
  const auto file = ParseFile(ReadFile(absl::StrCat(SPMD_GOLDEN_DIR, "/", GetParam())));
  ASSERT_TRUE(file.has_value());
  if (absl::StartsWith(file->expected, "error: ")) GTEST_SKIP() << "an error is expected";
  const auto checked = opt::RunSteps(file->input, {std::string("check")});
  if (absl::IsUnimplemented(checked.status())) GTEST_SKIP() << checked.status().message();
  if (absl::StrContains(checked.status().message(), "needs a graph")) {
    GTEST_SKIP() << "a program";
  }
  ASSERT_TRUE(checked.ok()) << checked.status();
  for (absl::string_view line : absl::StrSplit(*checked, '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::EndsWith(line, ": equal")) << line;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(GoldenFiles()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param.substr(0, info.param.size() - 4);
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST(LineDiff, ShowsWhatChangedAndItsNeighbours) {
  EXPECT_EQ(LineDiff("a\nb\nc\n", "a\nx\nc\n"), "  a\n- b\n+ x\n  c\n");
  EXPECT_EQ(LineDiff("", "a\n"), "+ a\n");
  EXPECT_EQ(LineDiff("a\nb\n", "b\n"), "- a\n  b\n");
}

}  // namespace
}  // namespace spmd
