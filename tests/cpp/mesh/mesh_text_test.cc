// SPDX-License-Identifier: Apache-2.0
#include "csrc/mesh/mesh_text.h"

#include <gtest/gtest.h>

namespace spmd {
namespace {

TEST(MeshText, ReadsWhatIsWritten) {
  for (const char* text :
       {"[data=2, model=4]", "[x=1]", "[node=2@0.1, gpu=2]", "[a=2, b=2] devices=[3,1,0,2]",
        "[a=4] devices=[4..7]", "[a=2] devices=[9223372036854775807,0]"}) {
    Scanner in(text);
    const auto mesh = ParseMeshText(in);
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    EXPECT_TRUE(in.AtEnd());
    EXPECT_EQ(MeshText(*mesh), text);
  }
}

TEST(MeshText, RefusesWhatIsNone) {
  for (const char* text : {"", "[", "[a=]", "[a=0]", "[a=2] devices=[0]", "[a=2, a=2]",
                           "[a=2] devices=[1..0]", "[a=99999999]"}) {
    Scanner in(text);
    EXPECT_FALSE(ParseMeshText(in).ok()) << text;
  }
}

}  // namespace
}  // namespace spmd
