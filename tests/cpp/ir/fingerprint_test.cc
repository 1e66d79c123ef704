// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/fingerprint.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_replace.h"
#include "csrc/ir/graph.h"
#include "tests/cpp/ir/random_graph.h"

namespace spmd::ir {
namespace {

constexpr const char* kText = R"(mesh @m [data=2, model=2]
graph {
  scalar $0: float
  %x: f32[4,4] @m {data},{}
  %y: f32[4,4]
  %0: f32[4,4] = aten::mm(%x, %y) updates(0) cut {0: data} at "a.py:1"
  %1: f32[4,4] = aten::mul.Scalar(%0, other=$0)
  return %1, %0 -> %x
}
)";

std::string Of(absl::string_view text) {
  const auto graph = Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status() << "\n" << text;
  return graph->ComputeFingerprint().ToString();
}

std::string With(const char* from, const char* to) {
  const std::string text = absl::StrReplaceAll(kText, {{from, to}});
  EXPECT_NE(text, kText) << from;
  return Of(text);
}

TEST(Fingerprint, IsWhatItWas) {
  // Programs are cached on disk under it, and processes compare it: a change is a decision.
  EXPECT_EQ(Of("graph {\n return\n}"), Graph().ComputeFingerprint().ToString());
  EXPECT_EQ(Of(kText), "4e08d6a27dc4af6176b06fe364c2eb6f");
}

TEST(Fingerprint, LeavesOutNamesAndSources) {
  EXPECT_EQ(With("%x", "%input"), Of(kText));
  EXPECT_EQ(With("@m", "@mesh"), Of(kText));
  EXPECT_EQ(With(" at \"a.py:1\"", ""), Of(kText));
}

TEST(Fingerprint, SeesEverythingElse) {
  std::set<std::string> seen = {Of(kText)};
  const std::pair<const char*, const char*> edits[] = {
      {"data=2, model=2", "data=2, model=4"},
      {"data=2, model=2]", "data=2, model=2] devices=[1,0,2,3]"},
      {"model", "other"},
      {"float", "int"},
      {"@m {data},{}", "@m {},{data}"},
      {"@m {data},{}", "@m {data,?},{}"},
      {"@m {data},{}", "@m {data chunk=3},{}"},
      {"@m {data},{}", "@m~ {data},{}"},
      {"@m {data},{}", "@m! {data},{}"},
      {"@m {data},{}", "@m {data},{} unreduced(sum){model}"},
      {"@m {data},{}", "@m {data},{} unreduced(max){model}"},
      {"@m {data},{}", ""},
      {"%y: f32", "%y: f64"},
      {"%y: f32[4,4]", "%y: f32[4,4,1]"},
      {"aten::mm", "aten::add"},
      {"(%x, %y)", "(%y, %x)"},
      {"(%x, %y)", "(%x, %y, _)"},
      {"(%x, %y)", "([%x, %y])"},
      {"updates(0)", "updates(1)"},
      {"updates(0)", ""},
      {"updates(0)", "updates(0) task(1)"},
      {"cut {0: data}", "cut {1: data}"},
      {"cut {0: data}", "cut {0: model}"},
      {"cut {0: data}", "cut {0: data chunk=3}"},
      {"cut {0: data}", "cut {}"},
      {"cut {0: data}", ""},
      {"other=$0", "other=0"},
      {"other=$0", "other=0.0"},
      {"other=$0", "another=$0"},
      {"other=$0", "other=$0, more=none"},
      {"return %1, %0 -> %x", "return %0 -> %x, %1"},
      {"return %1, %0 -> %x", "return %1, %0"},
      {"return %1, %0 -> %x", "return %1 unreduced, %0 -> %x"},
      {"return %1, %0 -> %x", "return %1 held, %0 -> %x"},
  };
  for (const auto& [from, to] : edits) {
    EXPECT_TRUE(seen.insert(With(from, to)).second) << from << " → " << to;
  }
}

TEST(Fingerprint, DiffersAmongRandomGraphs) {
  std::mt19937 random(4);
  std::set<std::string> texts, prints;
  for (int i = 0; i < 3000; ++i) {
    const Graph graph = RandomGraph(random);
    prints.insert(graph.ComputeFingerprint().ToString());
    texts.insert(graph.ToString());
  }
  // Fewer than texts only where names or sources alone differ.
  EXPECT_GT(prints.size(), texts.size() * 95 / 100);
}

TEST(Fingerprinter, SpreadsEveryBit) {
  for (int bit = 0; bit < 64; ++bit) {
    const Fingerprint a = Fingerprinter().Add(uint64_t{0}).Finish();
    const Fingerprint b = Fingerprinter().Add(uint64_t{1} << bit).Finish();
    EXPECT_GT(__builtin_popcountll(a.hi ^ b.hi), 12) << bit;
    EXPECT_GT(__builtin_popcountll(a.lo ^ b.lo), 12) << bit;
  }
}

TEST(Fingerprinter, TellsOrderAndLengthApart) {
  std::set<std::string> seen;
  const std::vector<std::vector<std::string>> sequences = {{},
                                                           {""},
                                                           {"", ""},
                                                           {"ab"},
                                                           {"a", "b"},
                                                           {"ba"},
                                                           {"b", "a"},
                                                           {"ab", ""},
                                                           {std::string(8, 'a')},
                                                           {std::string(9, 'a')},
                                                           {std::string(1, '\0')}};
  for (const auto& sequence : sequences) {
    Fingerprinter f;
    for (const std::string& s : sequence) f.Add(absl::string_view(s));
    EXPECT_TRUE(seen.insert(f.Finish().ToString()).second);
  }
}

}  // namespace
}  // namespace spmd::ir
