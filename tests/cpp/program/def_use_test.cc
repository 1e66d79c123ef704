// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/def_use.h"

#include <gtest/gtest.h>

namespace spmd::program {
namespace {

Program ProgramOf(absl::string_view text) {
  auto program = Program::Parse(text);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

ValueId Named(const Program& program, absl::string_view name) {
  for (size_t id = 0; id < program.values.size(); ++id) {
    if (program.values[id].name == name) return static_cast<ValueId>(id);
  }
  ADD_FAILURE() << "no value is called " << name;
  return kNoValue;
}

constexpr char kStepWithUses[] = R"(mesh @m [x=4]
program {
  %a: f32[8] @m {x}
  %w: f32[8] @m {} donated
  %unused: f32[16] @m {}
  %0: f32[8] @m {} = all_gather(%a) {x} dim(0)
  %1: f32[8] @m {}, %2: f32[8] @m {} = call f(%0, %w, %0, _)
  free %w, %0, %2
  %3: f32[8] @m {x} = slice(%1) {x} dim(0)
  return %3, %a, %3
}
)";

TEST(DefUseTest, MakersAndUsersAreInstructions) {
  const Program p = ProgramOf(kStepWithUses);
  const DefUse facts(p);
  EXPECT_EQ(facts.maker(Named(p, "a")), -1);
  EXPECT_EQ(facts.maker(Named(p, "0")), 0);
  EXPECT_EQ(facts.maker(Named(p, "1")), 1);
  EXPECT_EQ(facts.maker(Named(p, "2")), 1);
  EXPECT_EQ(facts.last_user(Named(p, "a")), 0);
  EXPECT_EQ(facts.last_user(Named(p, "1")), 3);
  EXPECT_EQ(facts.last_user(Named(p, "3")), -1);  // an output has no user
}

TEST(DefUseTest, FreesAreNoUses) {
  const Program p = ProgramOf(kStepWithUses);
  const DefUse facts(p);
  EXPECT_EQ(facts.last_user(Named(p, "w")), 1);
  EXPECT_EQ(facts.uses(Named(p, "w")), 1);
  EXPECT_EQ(facts.last_user(Named(p, "2")), -1);
  EXPECT_EQ(facts.uses(Named(p, "2")), 0);
}

TEST(DefUseTest, UsesCountOperandsAndOutputs) {
  const Program p = ProgramOf(kStepWithUses);
  const DefUse facts(p);
  EXPECT_EQ(facts.uses(Named(p, "0")), 2);  // twice an operand of one call
  EXPECT_EQ(facts.uses(Named(p, "a")), 2);  // an operand and an output
  EXPECT_EQ(facts.uses(Named(p, "3")), 2);  // twice an output
  EXPECT_EQ(facts.uses(Named(p, "unused")), 0);
}

TEST(DefUseTest, OutputsAndInputsThatAreNotDonatedOutliveTheProgram) {
  const Program p = ProgramOf(kStepWithUses);
  const DefUse facts(p);
  EXPECT_TRUE(facts.outlives(Named(p, "a")));
  EXPECT_TRUE(facts.outlives(Named(p, "unused")));
  EXPECT_TRUE(facts.outlives(Named(p, "3")));
  EXPECT_FALSE(facts.outlives(Named(p, "w")));
  EXPECT_FALSE(facts.outlives(Named(p, "1")));
  EXPECT_TRUE(facts.is_output(Named(p, "a")));
  EXPECT_FALSE(facts.is_output(Named(p, "unused")));
  EXPECT_EQ(facts.input(Named(p, "w")), 1);
  EXPECT_EQ(facts.input(Named(p, "3")), -1);
}

}  // namespace
}  // namespace spmd::program
