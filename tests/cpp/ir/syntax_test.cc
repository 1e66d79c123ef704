// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace spmd::ir {
namespace {

using ::testing::HasSubstr;

TEST(Syntax, ValueNames) {
  for (const char* name : {"x", "fc1.weight", "_a", "0", "17", "999999999"}) {
    EXPECT_TRUE(IsValueName(name)) << name;
  }
  for (const char* name : {"", "01", "1000000000", "a b", ".a", "-1", "1a"}) {
    EXPECT_FALSE(IsValueName(name)) << name;
  }
  EXPECT_TRUE(IsNumberName("0"));
  EXPECT_FALSE(IsNumberName("007"));
  EXPECT_FALSE(IsNumberName("x"));
}

TEST(Syntax, ANameIsDefinedOnceAndThenFound) {
  NameTable names;
  EXPECT_TRUE(names.Define("x", 5, 2).ok());
  EXPECT_EQ(names.Define("x", 6, 9).message(), "value '%x' is already defined on line 2");
  Scanner known("%x, %y"), unknown("%y");
  EXPECT_EQ(*names.Parse(known), 5);
  EXPECT_EQ(known.rest(), ", %y");
  EXPECT_EQ(names.Parse(unknown).status().message(), "value '%y' is used before it is defined");
}

TEST(Syntax, ArgumentsAreReadAsTheyAreWritten) {
  NameTable names;
  for (const int id : {0, 1, 2})
    ASSERT_TRUE(names.Define(std::string(1, static_cast<char>('a' + id)), id, 1).ok());
  const auto name_of = [](ValueId id) { return std::string("%") + static_cast<char>('a' + id); };
  for (const char* text :
       {"()", "(%a, _, %b)", "([%a, %b], [], [_], %c, dim=1)", "(mode=\"sum\", size=[2,3])"}) {
    Scanner in(text);
    const auto arguments = ParseArguments(in, names);
    ASSERT_TRUE(arguments.ok()) << arguments.status();
    EXPECT_EQ(
        ArgumentsToString(arguments->operands, arguments->groups, arguments->attributes, name_of),
        text);
  }
  Scanner late("(dim=1, %a)"), twice("(dim=1, dim=2)");
  EXPECT_THAT(std::string(ParseArguments(late, names).status().message()),
              HasSubstr("operands before attributes"));
  EXPECT_THAT(std::string(ParseArguments(twice, names).status().message()),
              HasSubstr("'dim' is given twice"));
}

TEST(Syntax, MeshesAndScalars) {
  const char* text = "@m [data=2, model=4] devices=[7..0]";
  Scanner bad(text), in("@m [a=2, b=2] devices=[3,2,1,0]"), scalar("$1: int");
  EXPECT_FALSE(ParseMesh(bad).ok());
  const auto mesh = ParseMesh(in);
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  EXPECT_EQ(MeshToString(mesh->name, *mesh->grid), "mesh @m [a=2, b=2] devices=[3,2,1,0]");
  Scanner ref("@n {x}"), none("@q");
  EXPECT_EQ(*ParseMeshRef(ref, {"m", "n"}), 1);
  EXPECT_EQ(ParseMeshRef(none, {"m"}).status().message(), "there is no mesh '@q'");
  EXPECT_EQ(ScalarToString(1, *ParseScalar(scalar, 1)), "scalar $1: int");
}

}  // namespace
}  // namespace spmd::ir
