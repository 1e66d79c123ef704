// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/compile_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "csrc/ir/fingerprint.h"

namespace spmd::partition {
namespace {

namespace fs = std::filesystem;

constexpr char kText[] = R"(mesh @m [data=2, model=4]
graph {
  scalar $0: float
  %x: f32[32,128] @m {data},{}
  %w1: f32[256,128] @m {model},{}
  %w2: f32[128,256] @m {},{model}
  %h: f32[32,256] = aten::linear(%x, %w1, _)
  %a: f32[32,256] = aten::mul.Scalar(%h, other=$0)
  %y: f32[32,128] = aten::linear(%a, %w2, _) at "train.py:31"
  return %y
})";

ir::Graph ParsedFrom(const std::string& text) {
  absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

class CompileCacheTest : public testing::Test {
 protected:
  CompileCacheTest()
      : directory_(fs::path(testing::TempDir()) /
                   absl::StrCat("compile_cache_", ::getpid(), "_",
                                testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(directory_);
  }
  ~CompileCacheTest() override { fs::remove_all(directory_); }

  CompileCache Cache(const std::string& build = "1", int64_t max_bytes = 1 << 20) const {
    return CompileCache({directory_.string(), build, max_bytes});
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(directory_)) files.push_back(entry.path());
    return files;
  }

  // Changes the file and makes the digest fit.
  static void Sign(const fs::path& path, const std::string& from, const std::string& to) {
    std::ostringstream whole;
    whole << std::ifstream(path).rdbuf();
    const std::string text = whole.str();
    const size_t first = text.find('\n') + 1, second = text.find('\n', first) + 1;
    const std::string mark = "\ndecisions ";
    const size_t at = text.rfind(mark), body = text.find('\n', at + 1) + 1;
    const std::string old = text.substr(body, text.size() - body - 1);
    const std::string decisions = absl::StrReplaceAll(old, {{from, to}});
    ASSERT_NE(decisions, old) << old;
    const std::string rest = absl::StrCat(text.substr(second, at - second), mark, decisions.size(),
                                          "\n", decisions, "\n");
    ir::Fingerprinter f;
    std::ofstream(path, std::ios::binary)
        << text.substr(0, first) << "digest " << f.Add(absl::string_view(rest)).Finish().ToString()
        << "\n"
        << rest;
  }

  fs::path directory_;
};

TEST_F(CompileCacheTest, GivesWhatWasCompiled) {
  const ir::Graph graph = ParsedFrom(kText);
  CompileOptions options;
  options.warn_gather_bytes = 1;
  const absl::StatusOr<Compiled> compiled = Compile(graph, options);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  CompileCache cache = Cache();
  EXPECT_TRUE(absl::IsNotFound(cache.Read(graph, options).status()));
  ASSERT_TRUE(cache.Write(graph, options, *compiled).ok());
  // By another object, as another process has.
  absl::StatusOr<Compiled> read = Cache().Read(graph, options);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->program.ToString(), compiled->program.ToString());
  EXPECT_EQ(read->program.ComputeFingerprint(), compiled->program.ComputeFingerprint());
  EXPECT_EQ(read->warnings.size(), compiled->warnings.size());
  EXPECT_EQ(read->decomposed, compiled->decomposed);
  EXPECT_EQ(read->program.grids[0], graph.grids()[0]) << "not the caller's own mesh";
}

// A digest that fits does not make an entry of anything.
TEST_F(CompileCacheTest, EntriesAreCheckedAgainstTheGraph) {
  const ir::Graph graph = ParsedFrom(kText);
  const Compiled compiled = *Compile(graph);
  CompileCache cache = Cache();
  const std::string expected = compiled.program.ToString();
  for (const auto& [from, to] : {std::pair("node @0 0:0 2:1,2", "node @0 0:0 0:1"),
                                 {"node @0 0:0 2:1,2", "node @0 0:9"},
                                 {"node @0 0:0 2:1,2", "node @7"},
                                 {"node @0 0:0 2:1,2\n", ""},
                                 {"node @0 0:0 2:1,2", "node @0 through 0 max 0"}}) {
    ASSERT_TRUE(cache.Write(graph, {}, compiled).ok());
    Sign(Files()[0], from, to);
    const absl::StatusOr<Compiled> read = cache.Read(graph, {});
    EXPECT_TRUE(absl::IsDataLoss(read.status())) << to << ": " << read.status();
  }
  // Another decision that can be: another program, of the same function.
  ASSERT_TRUE(cache.Write(graph, {}, compiled).ok());
  Sign(Files()[0], "node @0 0:0 2:1,2", "node @0 0:0");
  const absl::StatusOr<Compiled> read = cache.Read(graph, {});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_NE(read->program.ToString(), expected);
  EXPECT_EQ(read->program.outputs.size(), 1u);
}

TEST_F(CompileCacheTest, EverythingThatAProgramFollowsFromIsItsKey) {
  const ir::Graph graph = ParsedFrom(kText);
  CompileCache cache = Cache();
  ASSERT_TRUE(cache.Write(graph, {}, *Compile(graph)).ok());
  EXPECT_TRUE(cache.Read(graph, {}).ok());
  EXPECT_TRUE(absl::IsNotFound(Cache("2").Read(graph, {}).status()));
  machine::Machine machine = machine::Nominal();
  machine.latency *= 2;
  CompileOptions options;
  options.machine = &machine;
  EXPECT_TRUE(absl::IsNotFound(cache.Read(graph, options).status()));
  options = {};
  options.merge_cap_bytes = 100;
  EXPECT_TRUE(absl::IsNotFound(cache.Read(graph, options).status()));
  // Errors at run time name the line; links decide how values move.
  for (const auto& [from, to] : {std::pair("train.py:31", "train.py:32"),
                                 {"{data},{}", "{},{}"},
                                 {"[data=2", "[data=2@0.1"}}) {
    const ir::Graph other = ParsedFrom(absl::StrReplaceAll(kText, {{from, to}}));
    EXPECT_TRUE(absl::IsNotFound(cache.Read(other, {}).status()));
  }
}

TEST_F(CompileCacheTest, DamagedEntriesAreSaidAndRemoved) {
  const ir::Graph graph = ParsedFrom(kText);
  const Compiled compiled = *Compile(graph);
  CompileCache cache = Cache();
  ASSERT_TRUE(cache.Write(graph, {}, compiled).ok());
  ASSERT_EQ(Files().size(), 1u);
  const fs::path path = Files()[0];
  std::ostringstream whole;
  whole << std::ifstream(path).rdbuf();
  const std::string text = whole.str();
  for (size_t at = 0; at < text.size(); at += 37) {
    for (const bool cut : {false, true}) {
      std::string bad = cut ? text.substr(0, at) : text;
      if (!cut) bad[at] = static_cast<char>(bad[at] ^ 1);
      std::ofstream(path, std::ios::binary) << bad;
      EXPECT_TRUE(absl::IsDataLoss(cache.Read(graph, {}).status())) << at << " " << cut;
      EXPECT_TRUE(absl::IsNotFound(cache.Read(graph, {}).status())) << at << " " << cut;
    }
  }
  ASSERT_TRUE(cache.Write(graph, {}, compiled).ok());
  EXPECT_TRUE(cache.Read(graph, {}).ok());
}

TEST_F(CompileCacheTest, TheOldestGoWhenThereIsTooMuch) {
  std::vector<ir::Graph> graphs;
  for (int k = 0; k < 8; ++k) {
    graphs.push_back(
        ParsedFrom(absl::StrReplaceAll(kText, {{"train.py:31", absl::StrCat("l:", k)}})));
  }
  CompileCache cache = Cache();
  ASSERT_TRUE(cache.Write(graphs[0], {}, *Compile(graphs[0])).ok());
  const auto bytes = static_cast<int64_t>(fs::file_size(Files()[0]));
  CompileCache small = Cache("1", 5 * bytes);
  for (int k = 0; k < 8; ++k) {
    for (const fs::path& file : Files()) {
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(1));
    }
    ASSERT_TRUE(small.Write(graphs[k], {}, *Compile(graphs[k])).ok());
    EXPECT_LE(Files().size(), 5u) << "after " << k;
  }
  EXPECT_TRUE(small.Read(graphs[7], {}).ok());
  EXPECT_TRUE(absl::IsNotFound(small.Read(graphs[0], {}).status()));
}

TEST_F(CompileCacheTest, WhatIsHalfWrittenCountsAndGoesFirst) {
  const ir::Graph graph = ParsedFrom(kText);
  CompileCache small = Cache("1", 20000);
  ASSERT_TRUE(small.Write(graph, {}, *Compile(graph)).ok());
  const std::string left = absl::StrCat(Files()[0].string(), ".999.1");
  std::ofstream(left) << std::string(30000, 'x');
  std::ofstream(directory_ / "notes.txt") << "not ours";
  ASSERT_TRUE(Cache("1", 20000).Write(graph, {}, *Compile(graph)).ok());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(directory_ / "notes.txt"));
  EXPECT_TRUE(small.Read(graph, {}).ok());
}

TEST_F(CompileCacheTest, WhatIsNoFileIsDamage) {
  const ir::Graph graph = ParsedFrom(kText);
  CompileCache cache = Cache();
  ASSERT_TRUE(cache.Write(graph, {}, *Compile(graph)).ok());
  const fs::path path = Files()[0];
  fs::remove(path);
  fs::create_symlink("/dev/zero", path);
  EXPECT_TRUE(absl::IsDataLoss(cache.Read(graph, {}).status()));
  EXPECT_TRUE(absl::IsNotFound(cache.Read(graph, {}).status()));
  ASSERT_TRUE(cache.Write(graph, {}, *Compile(graph)).ok());
  EXPECT_TRUE(cache.Read(graph, {}).ok());
}

TEST_F(CompileCacheTest, ADirectoryThatOthersMayWriteToIsRefused) {
  const ir::Graph graph = ParsedFrom(kText);
  fs::create_directory(directory_);
  fs::permissions(directory_, fs::perms::all);
  EXPECT_TRUE(absl::IsPermissionDenied(Cache().Read(graph, {}).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(Cache().Write(graph, {}, *Compile(graph))));
  EXPECT_TRUE(Files().empty());
}

TEST_F(CompileCacheTest, ADirectoryThatCannotBeMadeIsAnError) {
  std::ofstream(directory_.string()) << "a file";
  const ir::Graph graph = ParsedFrom(kText);
  EXPECT_FALSE(Cache().Write(graph, {}, *Compile(graph)).ok());
  EXPECT_FALSE(Cache().Read(graph, {}).ok());
}

}  // namespace
}  // namespace spmd::partition
