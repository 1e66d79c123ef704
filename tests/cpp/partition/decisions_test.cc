// SPDX-License-Identifier: Apache-2.0
// A program that is lowered from decisions is the one that was compiled; whatever the decisions
// say, it computes what the graph says.
#include "csrc/partition/decisions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "csrc/partition/compile.h"
#include "csrc/reference/interpreter.h"
#include "csrc/reference/program_interpreter.h"

namespace spmd::partition {
namespace {

// Marks with open dimensions, products, partial sums passed through sums, windows, decomposed
// reductions, a batch that is merged behind the time, and rows that are read by a list.
constexpr const char* kOpen = R"(mesh @m [data=2, model=3]
graph {
  %x: f32[4,6] @m {data},{}
  %w: f32[12,6] @m {?},{model}
  %h: f32[4,12] @m {?},{model,?} = aten::linear(%x, %w, _)
  %a: f32[4,12] @m {?},{?} = aten::gelu(%h, approximate="none")
  return %a
}
)";
constexpr const char* kGraphs[] = {
    kOpen,
    R"(mesh @m [data=2, model=3]
graph {
  %x: f32[4,6] @m {data},{}
  %w1: f32[12,6] @m {model},{}
  %w2: f32[6,12] @m {},{model}
  %b: f32[6]
  %h: f32[4,12] = aten::linear(%x, %w1, _)
  %a: f32[4,12] = aten::gelu(%h, approximate="none")
  %y: f32[4,6] = aten::linear(%a, %w2, %b)
  %z: f32[4,6] = aten::add.Tensor(%y, %x, alpha=1)
  return %z, %y -> %x
}
)",
    R"(mesh @m [a=2, b=2]
graph {
  %x: f32[7,8] @m {a},{b}
  %0: f32[7,8] = aten::_softmax(%x, dim=1, half_to_float=false)
  %1: f32[7] = aten::sum.dim_IntList(%0, dim=[1], keepdim=false, dtype=none)
  %2: f32[7,3] = aten::slice.Tensor(%0, dim=1, start=3, end=6, step=1)
  %3: f32[8] = aten::amax(%0, dim=[0], keepdim=false)
  return %1, %2, %3
}
)",
    R"(mesh @m [a=4]
graph {
  %x: f32[2,3,9,5] @m {},{},{a},{}
  %w: f32[4,3,3,3]
  %0: f32[2,4,9,5] = aten::convolution(%x, %w, _, stride=[1,1], padding=[1,1], dilation=[1,1], transposed=false, output_padding=[0,0], groups=1)
  %1: f32[2,4,5,9] = aten::permute(%0, dims=[0,1,3,2])
  return %1
}
)",
    R"(mesh @m [a=2]
graph {
  %x: f32[3,4,5] @m {},{a},{}
  %w: f32[2,5]
  %0: f32[12,5] = aten::view(%x, size=[12,5])
  %1: f32[12,2] = aten::linear(%0, %w, _)
  %2: f32[12,2] = aten::relu(%1)
  %3: f32[3,4,2] = aten::view(%2, size=[3,4,2])
  return %3
}
)",
    R"(mesh @m [a=4]
graph {
  %x: f32[64,48] @m {a},{}
  %i: i64[24]
  %w: f32[8,48] @m {},{}
  %0: f32[24,48] = aten::index.Tensor(%x, [%i])
  %1: f32[24,48] = aten::exp(%0)
  %2: f32[24,8] = aten::linear(%1, %w, _)
  %3: f32[24,8] = aten::_softmax(%2, dim=1, half_to_float=false)
  %4: f32[64,8] = spmd::full(size=[64,8], value=0, dtype=f32)
  %5: f32[64,8] = aten::index_put(%4, [%i], %3, accumulate=true)
  %6: f32[8,48] = spmd::linear_dweight(%3, %1)
  return %5, %6
}
)",
};

// A decomposition that begins and ends with casts, which are merged with those around it.
constexpr const char* kCasts = R"(mesh @m [a=4]
graph {
  %x: bf16[8,3] @m {a},{}
  %0: bf16[3] = aten::logsumexp(%x, dim=[0], keepdim=false)
  %1: bf16[1,3] = aten::view(%0, size=[1,3])
  %2: bf16[8,3] = aten::sub.Tensor(%x, %1, alpha=1)
  %3: bf16[8,3] = aten::exp(%2)
  return %3
}
)";

ir::Graph ParsedGraph(const char* text) {
  absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::vector<reference::Literal> Inputs(const ir::Graph& graph) {
  std::vector<reference::Literal> inputs;
  for (const ir::ValueId v : graph.inputs()) {
    inputs.push_back(reference::SampleLiteral(graph.type(v), inputs.size()));
  }
  return inputs;
}

void ExpectSameResults(const ir::Graph& graph, const program::Program& program,
                       const std::string& decisions) {
  const std::vector<reference::Literal> inputs = Inputs(graph);
  const auto expected = reference::Interpret(graph, inputs);
  const auto actual = reference::Interpret(program, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(actual.ok()) << actual.status() << "\n" << decisions << program.ToString();
  ASSERT_EQ(actual->size(), expected->size());
  for (size_t k = 0; k < expected->size(); ++k) {
    ASSERT_EQ((*actual)[k].type, (*expected)[k].type);
    for (size_t i = 0; i < (*expected)[k].data.size(); ++i) {
      ASSERT_NEAR((*actual)[k].data[i], (*expected)[k].data[i], 1e-4)
          << "output " << k << "\n"
          << decisions << program.ToString();
    }
  }
}

TEST(Decisions, GiveTheProgramThatWasCompiled) {
  std::vector<const char*> texts(std::begin(kGraphs), std::end(kGraphs));
  texts.push_back(kCasts);
  for (const char* text : texts) {
    const ir::Graph graph = ParsedGraph(text);
    const absl::StatusOr<Compiled> compiled = Compile(graph);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const std::string written = compiled->decisions.ToString();
    absl::StatusOr<Decisions> read = Decisions::Parse(written);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << written;
    EXPECT_EQ(read->ToString(), written);
    const absl::StatusOr<Compiled> again = CompileAs(graph, *std::move(read));
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << written;
    EXPECT_EQ(again->program.ToString(), compiled->program.ToString()) << written;
    EXPECT_EQ(again->decomposed, compiled->decomposed);
    EXPECT_EQ(again->warnings.size(), compiled->warnings.size());
  }
}

TEST(Decisions, SayWhatOneNodeDoes) {
  const ir::Graph graph = ParsedGraph(kGraphs[1]);
  const std::string written = Compile(graph)->decisions.ToString();
  EXPECT_EQ(written.substr(0, written.find('\n')), "value 3 @0 {}") << written;
  EXPECT_NE(written.find("node @0 0:0 2:1"), std::string::npos) << written;
}

TEST(Decisions, SayWhatReachesOpenDimensions) {
  const absl::StatusOr<Compiled> compiled = Compile(ParsedGraph(kOpen));
  const std::string written = compiled->decisions.ToString();
  EXPECT_NE(written.find("value 2 @0 {0},{1}\n"), std::string::npos) << written;
  Decisions other = compiled->decisions;
  for (ValueDecision& value : other.values) {
    if (value.value == 2) value.sharding.dims[1].axes.clear();  // the user wants "model" there
  }
  EXPECT_FALSE(CompileAs(ParsedGraph(kOpen), other).ok());
}

TEST(Decisions, SayThatRowsStayWhereTheyAre) {
  const std::string written =
      Compile(ParsedGraph(kGraphs[std::size(kGraphs) - 1]))->decisions.ToString();
  EXPECT_EQ(written.substr(0, written.find('\n')), "owned") << written;
}

// Numbers exchanged for others, lines dropped and doubled.
std::string Changed(const std::string& text, std::mt19937& random) {
  const auto below = [&random](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (int edits = 1 + below(3); edits > 0 && !lines.empty(); --edits) {
    const int at = below(static_cast<int>(lines.size()));
    std::string& line = lines[at];
    const std::string digit(1, static_cast<char>('0' + below(5)));
    switch (below(7)) {
      case 0:
        lines.erase(lines.begin() + at);
        break;
      case 1:
        lines.insert(lines.begin() + at, lines[below(static_cast<int>(lines.size()))]);
        break;
      case 2:
        absl::StrAppend(&line, " through ", below(3) - 1, below(2) ? " sum " : " max ", digit);
        break;
      case 3:
        absl::StrAppend(&line, " ", below(4), ":", digit);
        break;
      case 4:
        line = line.substr(0, line.rfind(' '));
        break;
      default:
        for (int tries = 0; tries < 20; ++tries) {
          char& c = line[below(static_cast<int>(line.size()))];
          if (c >= '0' && c <= '9') {
            c = digit[0];
            break;
          }
        }
    }
  }
  return absl::StrJoin(lines, "\n");
}

TEST(Decisions, AnybodysAreRefusedOrComputeTheSame) {
  std::mt19937 random(3);
  int lowered = 0, refused = 0;
  for (const char* text : kGraphs) {
    const ir::Graph graph = ParsedGraph(text);
    const std::string written = Compile(graph)->decisions.ToString();
    for (int i = 0; i < 400; ++i) {
      const std::string changed = Changed(written, random);
      absl::StatusOr<Decisions> read = Decisions::Parse(changed);
      if (!read.ok()) continue;
      const absl::StatusOr<Compiled> compiled = CompileAs(graph, *std::move(read));
      ++(compiled.ok() ? lowered : refused);
      if (compiled.ok()) ExpectSameResults(graph, compiled->program, changed);
    }
  }
  EXPECT_GT(lowered, 50);
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace spmd::partition
