// SPDX-License-Identifier: Apache-2.0
// Attention around rings of devices: where memory asks for it, what it sends, and that it is exact.
#include "csrc/partition/rings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/partition/compile.h"
#include "csrc/program/analysis.h"
#include "csrc/reference/interpreter.h"
#include "csrc/reference/program_interpreter.h"

namespace spmd::partition {
namespace {

// Attention with two queries for each key head and its gradients. Lengths are sharded by `cut`.
constexpr char kAttention[] = R"(mesh @m [$mesh]
graph {
  %g: $type[2,4,16,3] @m $cut
  %q: $type[2,4,16,2] @m $cut
  %k: $type[2,2,$keys,2] @m $cut
  %v: $type[2,2,$keys,3] @m $cut
  %o: $type[2,4,16,3], %l: $rows[2,4,16] = spmd::attention(%q, %k, %v, _, is_causal=$causal, scale=0.7)
  %dq: $type[2,4,16,2], %dk: $type[2,2,$keys,2], %dv: $type[2,2,$keys,3] = spmd::attention_backward(%g, %q, %k, %v, %o, %l, _, is_causal=$causal, scale=0.7) task(1)
  return %o, %l, %dq, %dk, %dv
}
)";

struct Case {
  std::string mesh = "context=4";
  std::string cut = "{},{},{context},{}";
  bool causal = false;
  std::string type = "f64";
  int keys = 16;
};

ir::Graph RingOf(const Case& c) {
  const std::string text =
      absl::StrReplaceAll(kAttention, {{"$mesh", c.mesh},
                                       {"$cut", c.cut},
                                       {"$causal", c.causal ? "true" : "false"},
                                       {"$type", c.type},
                                       {"$rows", c.type == "f64" ? "f64" : "f32"},
                                       {"$keys", absl::StrCat(c.keys)}});
  absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status() << "\n" << text;
  return *std::move(graph);
}

CompileOptions Limited(int64_t bytes) {
  CompileOptions options;
  options.memory_limit = bytes;
  options.verify = true;
  return options;
}

Compiled CompiledIn(const ir::Graph& graph, int64_t memory_limit) {
  absl::StatusOr<Compiled> compiled = Compile(graph, Limited(memory_limit));
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *std::move(compiled);
}

// As much less than the program needs otherwise that making values again does not suffice.
constexpr int64_t kLittle = 1024;

void ExpectComputes(const ir::Graph& graph, const program::Program& program) {
  std::vector<reference::Literal> inputs;
  for (const ir::ValueId v : graph.inputs()) {
    inputs.push_back(reference::SampleLiteral(graph.type(v), inputs.size()));
  }
  const auto expected = reference::Interpret(graph, inputs);
  const auto actual = reference::Interpret(program, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status() << "\n" << program.ToString();
  for (size_t k = 0; k < expected->size(); ++k) {
    ASSERT_EQ((*actual)[k].type, (*expected)[k].type);
    for (size_t i = 0; i < (*expected)[k].data.size(); ++i) {
      ASSERT_NEAR((*actual)[k].data[i], (*expected)[k].data[i], 1e-10) << k << " " << i;
    }
  }
}

// Kinds, and the bytes that each of them sends, per device.
using Collectives = std::multiset<std::pair<std::string, int64_t>>;

Collectives Sent(const program::Program& program) {
  Collectives sent;
  for (const program::Traffic& t : program::CollectiveTraffic(program)) {
    const absl::string_view name = program::OpCodeName(t.code);
    sent.insert({std::string(name.data(), name.size()), t.wire_bytes});
  }
  return sent;
}

TEST(Rings, AreExactAndSendKeysAndValuesOnceAround) {
  for (const bool causal : {false, true}) {
    for (const auto& [mesh, cut, parts] :
         {std::tuple{"context=4", "{},{},{context},{}", 1},
          std::tuple{"data=2, context=2", "{data},{},{context},{}", 2},
          std::tuple{"context=2, model=2", "{},{model},{context},{}", 2},
          std::tuple{"a=2, b=2", "{},{},{a,b},{}", 1}}) {
      SCOPED_TRACE(absl::StrCat(mesh, causal ? " causal" : ""));
      const ir::Graph graph = RingOf({mesh, cut, causal});
      const Compiled compiled = CompiledIn(graph, kLittle);
      ASSERT_EQ(compiled.in_rings.ops,
                (std::vector<std::string>{"spmd::attention", "spmd::attention_backward"}));
      ExpectComputes(graph, compiled.program);
      const int devices = 4 / parts;
      // Keys and values n - 1 times forwards and backwards, their gradients n times.
      Collectives expected;
      const int64_t block = 2 * 2 * 16 * (2 + 3) * 8 / (devices * parts);
      for (int i = 0; i < 3 * devices - 2; ++i) expected.insert({"exchange", block});
      EXPECT_EQ(Sent(compiled.program), expected) << compiled.program.ToString();
      EXPECT_EQ(compiled.in_rings.wire_after, (3 * devices - 2) * block);
      EXPECT_LT(compiled.in_rings.bytes_after, compiled.in_rings.bytes_before);
      EXPECT_GT(compiled.in_rings.seconds_after, 0);
    }
  }
}

TEST(Rings, AreForProgramsThatDoNotFit) {
  const ir::Graph graph = RingOf({.causal = true});
  const Compiled free = CompiledIn(graph, 0);
  EXPECT_TRUE(free.in_rings.ops.empty());
  EXPECT_EQ(free.in_rings.ToString(), "");
  const int64_t peak = CompiledIn(graph, int64_t{1} << 30).gathered_again.bytes_before;
  const Compiled fits = CompiledIn(graph, peak + peak / 100);
  EXPECT_TRUE(fits.in_rings.ops.empty());
  EXPECT_EQ(fits.program.ToString(), free.program.ToString());
  const Compiled little = CompiledIn(graph, kLittle);
  EXPECT_LE(little.in_rings.bytes_before, peak);
  EXPECT_EQ(little.in_rings.bytes_after, little.gathered_again.bytes_after);
  EXPECT_LT(little.in_rings.bytes_after, little.in_rings.bytes_before * 6 / 10);
  ASSERT_FALSE(little.warnings.empty());
  EXPECT_NE(little.warnings.back().text.find(
                "computes spmd::attention and spmd::attention_backward around rings of devices"),
            std::string::npos)
      << little.warnings.back().text;
}

TEST(Rings, HalfTypesAreSummedInFloat) {
  const ir::Graph graph = RingOf({.type = "bf16"});
  const Compiled compiled = CompiledIn(graph, 256);
  ASSERT_EQ(compiled.in_rings.ops.size(), 2u);
  Collectives expected;
  const int64_t block = 2 * 2 * 16 * (2 + 3) / 4;
  for (int i = 0; i < 6; ++i) expected.insert({"exchange", 2 * block});
  for (int i = 0; i < 4; ++i) expected.insert({"exchange", 4 * block});
  EXPECT_EQ(Sent(compiled.program), expected);
}

// What cannot be in rings is as without a limit, up to what is made again.
TEST(Rings, AreLeftOutWhereBlocksDoNotMeet) {
  const Case uneven{.mesh = "context=3"}, whole_heads{.cut = "{},{context},{},{}", .causal = true},
      unequal{.causal = true, .keys = 8};
  for (const Case& c : {uneven, whole_heads, unequal}) {
    const ir::Graph graph = RingOf(c);
    const Compiled compiled = CompiledIn(graph, kLittle);
    EXPECT_TRUE(compiled.in_rings.ops.empty()) << compiled.program.ToString();
    ExpectComputes(graph, compiled.program);
  }
  // Not causal, they may differ in length.
  const ir::Graph graph = RingOf({.keys = 8});
  const Compiled compiled = CompiledIn(graph, kLittle);
  EXPECT_EQ(compiled.in_rings.ops.size(), 2u);
  ExpectComputes(graph, compiled.program);
}

TEST(Rings, AMaskIsNotCutInBlocks) {
  const auto graph = ir::Graph::Parse(R"(mesh @m [context=4]
graph {
  %q: f64[2,4,16,2] @m {},{},{context},{}
  %k: f64[2,2,16,2] @m {},{},{context},{}
  %m: bool[16,16] @m {context},{}
  %o: f64[2,4,16,2], %l: f64[2,4,16] = spmd::attention(%q, %k, %k, %m, is_causal=false, scale=none)
  return %o, %l
}
)");
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_TRUE(CompiledIn(*graph, 256).in_rings.ops.empty());
}

}  // namespace
}  // namespace spmd::partition
