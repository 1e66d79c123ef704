// SPDX-License-Identifier: Apache-2.0
// What a graph computes and what its program computes on every device of the mesh are the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "csrc/ir/verifier.h"
#include "csrc/partition/compile.h"
#include "csrc/program/one_place/coalesce.h"
#include "csrc/reference/interpreter.h"
#include "csrc/reference/program_interpreter.h"
#include "tests/cpp/partition/random_model.h"

namespace spmd::partition {
namespace {

bool Close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-9 * (1 + std::abs(a));
}

// Empty when all is well.
std::string Difference(const std::vector<reference::Literal>& expected,
                       const program::Program& program,
                       const std::vector<reference::Literal>& inputs) {
  if (const absl::Status sound = program::Verify(program); !sound.ok()) {
    return sound.ToString() + "\n" + program.ToString();
  }
  const auto actual = reference::Interpret(program, inputs);
  if (!actual.ok()) return actual.status().ToString() + "\n" + program.ToString();
  for (size_t k = 0; k < expected.size(); ++k) {
    for (size_t i = 0; i < expected[k].data.size(); ++i) {
      const double a = expected[k].data[i], b = (*actual)[k].data[i];
      if (Close(a, b)) continue;
      return absl::StrCat("output ", k, " at ", i, ": the graph gives ", a, ", the program ", b,
                          "\n", program.ToString());
    }
  }
  return "";
}

// The program's, tile by tile and coalesced.
std::string Difference(const ir::Graph& graph) {
  std::vector<reference::Literal> inputs;
  for (ir::ValueId id : graph.inputs()) {
    inputs.push_back(reference::SampleLiteral(graph.type(id), inputs.size()));
  }
  const auto expected = reference::Interpret(graph, inputs);
  if (!expected.ok()) return "the graph: " + expected.status().ToString();
  CompileOptions options;
  options.verify = true;
  const auto compiled = Compile(graph, options);
  if (!compiled.ok()) return "compiling: " + compiled.status().ToString();
  const std::string tiles = Difference(*expected, compiled->program, inputs);
  if (!tiles.empty()) return tiles;
  const std::string whole = Difference(*expected, program::Coalesce(compiled->program), inputs);
  return whole.empty() ? "" : "coalesced: " + whole;
}

TEST(Numbers, OfRandomModelsAreThoseOfTheGraph) {
  // SPMD_MODELS=1000000 runs longer.
  const char* many = std::getenv("SPMD_MODELS");
  const int models = many == nullptr ? 300 : std::atoi(many);
  for (int seed = 0; seed < models; ++seed) {
    std::mt19937 random(seed);
    const ir::Graph graph = RandomModel(random);
    ASSERT_TRUE(ir::Verify(graph).ok()) << ir::Verify(graph) << graph.ToString();
    EXPECT_EQ(Difference(graph), "") << "seed " << seed << "\n" << graph.ToString();
  }
}

}  // namespace
}  // namespace spmd::partition
