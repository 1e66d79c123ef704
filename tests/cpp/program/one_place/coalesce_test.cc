// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/one_place/coalesce.h"

#include <gtest/gtest.h>

namespace spmd::program {
namespace {

std::string Coalesced(const std::string& text) {
  const absl::StatusOr<Program> program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return "";
  EXPECT_TRUE(Verify(*program).ok()) << Verify(*program);
  const Program whole = Coalesce(*program);
  EXPECT_TRUE(Verify(whole).ok()) << Verify(whole) << "\n" << whole.ToString();
  return whole.ToString();
}

TEST(Coalesce, CollectivesShareWhatIsThere) {
  EXPECT_EQ(Coalesced(R"(mesh @m [data=2, model=4]
program {
  %x: f32[6,12] @m {data},{model}
  %w: f32[5,12] @m {},{model} donated
  %b: f32[5] @m {}
  %0: f32[6,5] @m {data},{} unreduced(sum){model} = call aten::linear(%x, %w, %b) added_once(2: model)
  %1: f32[6,5] @m {data},{} = all_reduce(%0) {model} at "train.py:3"
  free %0
  %2: f32[6,5] @m {},{} = all_gather(%1) {data} dim(0)
  return %1, %2
}
)"),
            R"(mesh @m []
program {
  %x: f32[6,12] @m {},{}
  %w: f32[5,12] @m {},{} donated
  %b: f32[5] @m {}
  %0: f32[6,5] @m {},{} = call aten::linear(%x, %w, %b)
  %1: f32[6,5] @m {},{} = permute(%0) at "train.py:3"
  free %0
  %2: f32[6,5] @m {},{} = permute(%1)
  return %1, %2
}
)");
}

TEST(Coalesce, WindowsReachOverTheEndsOnly) {
  EXPECT_EQ(Coalesced(R"(mesh @m [data=2]
mesh @r [x=2] devices=[1,0]
program {
  %x: f32[8,9] @m {},{data chunk=6}
  %h: f32[8,9] @m {},{data chunk=6} window(1: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 9 chunk 6) = exchange(%x) fill(-inf)
  %0: f32[8,9] @r {x},{} = exchange(%x)
  %1: f32[8,9] @m {data},{} = all_to_all(%x) {data} dim(1) to(0)
  %2: f32[8,9] @m {data},{} = call aten::view(%1, size=[size(r0,0),9+coord(0)*0])
  return %0, %2
}
)"),
            R"(mesh @m []
program {
  %x: f32[8,9] @m {},{}
  %h: f32[8,9] @m {},{} window(1: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 9) = exchange(%x) fill(-inf)
  %0: f32[8,9] @m {},{} = permute(%x)
  %1: f32[8,9] @m {},{} = permute(%x)
  %2: f32[8,9] @m {},{} = call aten::view(%1, size=[size(r0,0),9])
  return %0, %2
}
)");
}

// An image sharded by rows; its padding by rows is in two windows, by columns the op's own.
std::string Convolved(const std::string& end, const std::string& fill, const std::string& stride) {
  return Coalesced(
      R"(mesh @m [data=2]
program {
  %x: f32[1,3,8,9] @m {},{},{data},{} donated
  %w: f32[4,3,3,3] @m {},{},{},{}
  %h: f32[1,3,8,9] @m {},{},{data},{} window(2: start(r0,0)*)" +
      stride + "-1..start(r0,0)*" + stride + "+size(r0,0)*" + stride + end + " of " +
      (stride == "1" ? "8" : "4") + R"() = exchange(%x) fill()" + fill + R"()
  free %x
  %0: f32[1,4,)" +
      (stride == "1" ? "8" : "4") +
      R"(,9] @m {},{},{data},{} = call aten::convolution(%h, %w, _, stride=[)" + stride +
      R"(,1], padding=[0,1], dilation=[1,1], transposed=false, output_padding=[0,0], groups=1)
  free %h
  return %0
}
)");
}

TEST(Coalesce, ConvolutionsPadThemselves) {
  const auto pads = [](const std::string& program) {
    return program.find("exchange") == std::string::npos &&
           program.find("aten::convolution(%x, %w, _") != std::string::npos &&
           program.find("padding=[1,1]") != std::string::npos &&
           program.find("free %x") > program.find("convolution");
  };
  EXPECT_TRUE(pads(Convolved("+1", "0", "1")));
  EXPECT_TRUE(pads(Convolved("+0", "0", "2")));  // the last window ends with the image
  EXPECT_FALSE(pads(Convolved("+1", "1", "1")));
  EXPECT_FALSE(pads(Convolved("+2", "0", "1")));  // a position more
}

}  // namespace
}  // namespace spmd::program
