// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "csrc/trace/program/compiled_program.h"

namespace spmd::trace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ProgramPtr NewCompiledProgram() { return std::make_shared<CompiledProgram>(); }

TEST(StepLogTest, AStepIsWhatItNeededFromRunsSinceTheStepBefore) {
  StepLog log;
  const ProgramPtr forward = NewCompiledProgram(), evaluation = NewCompiledProgram(),
                   update = NewCompiledProgram();
  const int64_t made = log.Ran(forward, {});
  log.Ran(evaluation, {});
  log.Ran(update, {made, 0});
  log.EndStep();
  EXPECT_THAT(log.last_step(), ElementsAre(forward, update));
  EXPECT_EQ(log.lost(), 0);
  log.Ran(evaluation, {});
  EXPECT_EQ(log.runs_since(), 1);
}

TEST(StepLogTest, AllRunsWhileTheOptimizerIsInItsStepBelongToIt) {
  StepLog log;
  const ProgramPtr evaluation = NewCompiledProgram(), backward = NewCompiledProgram(),
                   first = NewCompiledProgram(), second = NewCompiledProgram();
  log.Ran(evaluation, {});
  log.BeginStep();
  const int64_t gradients = log.Ran(backward, {});
  log.Ran(first, {gradients});  // nothing needs what it writes
  log.Ran(second, {gradients});
  log.EndStep();
  EXPECT_THAT(log.last_step(), ElementsAre(backward, first, second));
  log.Ran(evaluation, {});
  log.Ran(second, {});
  log.EndStep();
  EXPECT_THAT(log.last_step(), ElementsAre(second));
}

TEST(StepLogTest, ProgramsThatTheCacheDropsAreCounted) {
  StepLog log;
  const ProgramPtr update = NewCompiledProgram();
  const int64_t made = log.Ran(NewCompiledProgram(), {});  // nobody else holds it
  log.Ran(update, {made});
  log.EndStep();
  EXPECT_THAT(log.last_step(), ElementsAre(update));
  EXPECT_EQ(log.lost(), 1);
  log.Ran(update, {made});
  log.EndStep();
  EXPECT_EQ(log.lost(), 0);
}

TEST(StepLogTest, OldRunsAreForgottenAndCounted) {
  StepLog log;
  const ProgramPtr part = NewCompiledProgram();
  std::vector<int64_t> made;
  for (int i = 0; i < 5000; ++i) made.push_back(log.Ran(part, {}));
  log.Ran(part, made);
  log.EndStep();
  EXPECT_EQ(log.last_step().size() + log.lost(), 5001u);
  EXPECT_GT(log.lost(), 0);
}

TEST(StepLogTest, PlanningKeepsAllOfAStep) {
  StepLog log;
  log.KeepAll(true);
  std::vector<int64_t> made;
  for (int i = 0; i < 5000; ++i) made.push_back(log.Ran(NewCompiledProgram(), {}));
  log.Ran(NewCompiledProgram(), made);
  log.EndStep();
  EXPECT_EQ(log.last_step().size(), 5001u);
  EXPECT_EQ(log.lost(), 0);
  log.KeepAll(false);
  log.Ran(NewCompiledProgram(), {});
  log.EndStep();
  EXPECT_THAT(log.last_step(), IsEmpty());
  EXPECT_EQ(log.lost(), 1);
}

}  // namespace
}  // namespace spmd::trace
