// SPDX-License-Identifier: Apache-2.0
// Exact collectives of the well-known ways to shard a network.
#include "csrc/partition/compile.h"

#include <gtest/gtest.h>

#include <map>

#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"

namespace spmd::partition {
namespace {

// "all_reduce model" -> 2: instructions per kind and axes, merged ones counted once.
using Counts = std::map<std::string, int>;

Counts CollectivesOf(const std::string& text, CompileOptions options = {}) {
  absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  options.verify = true;
  absl::StatusOr<Compiled> compiled = Compile(*graph, options);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  if (!compiled.ok()) return {};
  Counts counts;
  for (const program::Instruction& i : compiled->program.instructions) {
    if (i.code == program::OpCode::kCall || i.code == program::OpCode::kFree ||
        i.code == program::OpCode::kSlice || i.code == program::OpCode::kTerm) {
      continue;
    }
    const Grid& grid = *compiled->program.grids[0];
    const absl::string_view name = program::OpCodeName(i.code);
    ++counts[std::string(name.data(), name.size()) + " " + grid.AxesToString(i.axes)];
  }
  return counts;
}

constexpr char kMesh[] = "mesh @m [data=2, model=4]\n";

TEST(Compile, MegatronMlpReducesOnce) {
  EXPECT_EQ(CollectivesOf(std::string(kMesh) + R"(graph {
    %x: f32[32,128]
    %w1: f32[256,128] @m {model},{}
    %b1: f32[256] @m {model}
    %w2: f32[128,256] @m {},{model}
    %b2: f32[128]
    %h: f32[32,256] = aten::linear(%x, %w1, %b1)
    %a: f32[32,256] = aten::relu(%h)
    %y: f32[32,128] = aten::linear(%a, %w2, %b2)
    return %y
  })"),
            (Counts{{"all_reduce model", 1}}));
}

TEST(Compile, DataParallelGradientsAreReducedTogether) {
  EXPECT_EQ(CollectivesOf(std::string(kMesh) + R"(graph {
    %x: f32[8192,128] @m {data,model},{}
    %g: f32[8192,256] @m {data,model},{}
    %w: f32[256,128]
    %b: f32[256]
    %dw: f32[256,128] = spmd::linear_dweight(%g, %x)
    %db: f32[256] = aten::sum.dim_IntList(%g, dim=[0], keepdim=false, dtype=none)
    %sw: f32[256,128] = aten::mul.Scalar(%dw, other=0.1)
    %sb: f32[256] = aten::mul.Scalar(%db, other=0.1)
    %w2: f32[256,128] = aten::sub.Tensor(%w, %sw, alpha=1)
    %b2: f32[256] = aten::sub.Tensor(%b, %sb, alpha=1)
    return %w2 -> %w, %b2 -> %b
  })"),
            (Counts{{"all_reduce data,model", 1}}));
}

// Four gradients of 64 KiB: two go into one collective of at most 128 KiB.
TEST(Compile, MergedCollectivesStayUnderTheCap) {
  std::string text = std::string(kMesh) + "graph {\n%x: f32[8192,128] @m {data,model},{}\n";
  std::string returned;
  for (int i = 0; i < 4; ++i) {
    const std::string n = std::to_string(i);
    text += "%g" + n + ": f32[8192,128] @m {data,model},{}\n%w" + n + ": f32[128,128]\n";
  }
  for (int i = 0; i < 4; ++i) {
    const std::string n = std::to_string(i);
    text += "%d" + n + ": f32[128,128] = spmd::linear_dweight(%g" + n + ", %x)\n";
    text += "%u" + n + ": f32[128,128] = aten::sub.Tensor(%w" + n + ", %d" + n + ", alpha=1)\n";
    returned += (i == 0 ? "return %u" : ", %u") + n + " -> %w" + n;
  }
  text += returned + "\n}";
  for (const auto& [cap, collectives] : {std::pair(64 << 10, 4), {128 << 10, 2}, {256 << 10, 1}}) {
    CompileOptions options;
    options.merge_cap_bytes = cap;
    EXPECT_EQ(CollectivesOf(text, options), (Counts{{"all_reduce data,model", collectives}}));
  }
}

TEST(Compile, FullyShardedGathersWeightsAndScattersGradients) {
  EXPECT_EQ(CollectivesOf(std::string(kMesh) + R"(graph {
    %x: f32[8192,128] @m {data,model},{}
    %g: f32[8192,256] @m {data,model},{}
    %w: f32[256,128] @m {data,model},{}
    %y: f32[8192,256] = aten::linear(%x, %w, _)
    %h: f32[8192,256] = aten::mul.Tensor(%y, %g)
    %dw: f32[256,128] = spmd::linear_dweight(%h, %x)
    %sw: f32[256,128] = aten::mul.Scalar(%dw, other=0.1)
    %w2: f32[256,128] = aten::sub.Tensor(%w, %sw, alpha=1)
    return %w2 -> %w
  })"),
            (Counts{{"all_gather data,model", 1}, {"reduce_scatter data,model", 1}}));
}

TEST(Compile, TermsOfOneSumAreReducedOnce) {
  // The input gradients of q, k and v are added before they are reduced.
  EXPECT_EQ(CollectivesOf(std::string(kMesh) + R"(graph {
    %gq: f32[32,64] @m {},{model}
    %gk: f32[32,64] @m {},{model}
    %gv: f32[32,64] @m {},{model}
    %wq: f32[64,128] @m {model},{}
    %wk: f32[64,128] @m {model},{}
    %wv: f32[64,128] @m {model},{}
    %dq: f32[32,128] = spmd::linear_dinput(%gq, %wq)
    %dk: f32[32,128] = spmd::linear_dinput(%gk, %wk)
    %dv: f32[32,128] = spmd::linear_dinput(%gv, %wv)
    %s: f32[32,128] = aten::add.Tensor(%dq, %dk, alpha=1)
    %t: f32[32,128] = aten::add.Tensor(%s, %dv, alpha=1)
    %u: f32[32,128] = aten::tanh(%t)
    return %u
  })"),
            (Counts{{"all_reduce model", 1}}));
}

TEST(Compile, AResidualIsNotSummedOncePerShard) {
  EXPECT_EQ(CollectivesOf(std::string(kMesh) + R"(graph {
    %x: f32[32,128]
    %a: f32[32,64] @m {},{model}
    %w: f32[128,64] @m {},{model}
    %y: f32[32,128] = aten::linear(%a, %w, _)
    %r: f32[32,128] = aten::add.Tensor(%x, %y, alpha=1)
    %u: f32[32,128] = aten::tanh(%r)
    %v: f32[32,128] = aten::add.Tensor(%r, %u, alpha=1)
    return %v
  })"),
            (Counts{{"all_reduce model", 1}}));
}

// Also if gathering the dimension costs nothing (SPMD_PRICE_MOVES=0): what may be sharded is.
TEST(Compile, ASoftmaxOfACutDimensionIsTakenApart) {
  for (const machine::Machine* machine : {&machine::Nominal(), &machine::NominalWithFreeMoves()}) {
    CompileOptions options;
    options.machine = machine;
    EXPECT_EQ(CollectivesOf(std::string(kMesh) + R"(graph {
      %x: f32[32,128] @m {data},{model}
      %y: f32[32,128] @m {data},{model} = aten::_softmax(%x, dim=1, half_to_float=false)
      return %y
    })",
                            options),
              (Counts{{"all_reduce model", 2}}))
        << machine->name;
  }
}

TEST(Compile, NothingIsMovedWhereNothingIsCut) {
  EXPECT_EQ(CollectivesOf(R"(graph {
    %x: f32[2,3]
    %y: f32[2,3] = aten::tanh(%x)
    return %y
  })"),
            Counts{});
}

// The program does not depend on how many devices an axis has.
TEST(Compile, SizeDoesNotGrowWithTheMesh) {
  auto instructions = [](const std::string& axes, int64_t batch) {
    const std::string b = std::to_string(batch);
    absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(
        "mesh @m [" + axes + "]\ngraph {\n%x: f32[" + b +
        ",1024] @m {data},{}\n%w: f32[4096,1024] @m {model},{}\n%v: f32[1024,4096] @m {},{model}\n"
        "%h: f32[" +
        b + ",4096] = aten::linear(%x, %w, _)\n%y: f32[" + b +
        ",1024] = aten::linear(%h, %v, _)\nreturn %y\n}");
    EXPECT_TRUE(graph.ok()) << graph.status();
    absl::StatusOr<Compiled> compiled = Compile(*graph);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return compiled.ok() ? compiled->program.instructions.size() : 0;
  };
  EXPECT_EQ(instructions("data=2, model=4", 64), instructions("data=64, model=8", 2048));
}

}  // namespace
}  // namespace spmd::partition
