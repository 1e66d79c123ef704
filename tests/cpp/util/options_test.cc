// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace spmd {
namespace {

absl::StatusOr<Options> Given(const std::map<std::string, std::string>& variables) {
  return OptionsFrom([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it != variables.end() ? it->second.c_str() : nullptr;
  });
}

std::string ErrorOf(const std::string& variable, const std::string& value) {
  const absl::StatusOr<Options> options = Given({{variable, value}});
  return options.ok() ? "" : std::string(options.status().message());
}

TEST(OptionsTest, VariablesThatAreNotSetOrEmptyLeaveTheDefaults) {
  for (const auto& options : {Given({}), Given({{"SPMD_COALESCE", ""},
                                                {"SPMD_TURNS", ""},
                                                {"SPMD_NUM_DEVICES", ""},
                                                {"SPMD_LOG", ""},
                                                {"SPMD_BACKEND", ""}})}) {
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->backend, "cpu");
    EXPECT_EQ(options->num_devices, std::nullopt);
    EXPECT_TRUE(options->coalesce);
    EXPECT_EQ(options->turns, Turns::kWhereTheyPay);
    EXPECT_FALSE(options->verify);
    EXPECT_FALSE(options->log.passes);
    EXPECT_EQ(options->program_memory, int64_t{512} << 20);
  }
}

TEST(OptionsTest, EachVariableSetsItsField) {
  const auto options = Given({{"SPMD_BACKEND", "mock_tpu:v4-16"},
                              {"SPMD_NUM_DEVICES", "4"},
                              {"SPMD_COALESCE", "0"},
                              {"SPMD_PRICE_MOVES", "0"},
                              {"SPMD_REPLAY", "0"},
                              {"SPMD_KEEP_MEMORY", "0"},
                              {"SPMD_VERIFY", "1"},
                              {"SPMD_CHECK_PASSES", "1"},
                              {"SPMD_SYNC", "1"},
                              {"SPMD_DISTRIBUTED", "0"},
                              {"SPMD_TIMEOUT", "2.5"},
                              {"SPMD_EXACT", "1"},
                              {"SPMD_LOG", "traffic, passes"},
                              {"SPMD_DUMP", "programs.txt"},
                              {"SPMD_PROGRAM_MEMORY", "0"}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->backend, "mock_tpu:v4-16");
  EXPECT_EQ(options->num_devices, 4);
  EXPECT_FALSE(options->coalesce || options->price_moves || options->replay ||
               options->keep_memory || options->distributed);
  EXPECT_TRUE(options->verify && options->check_passes && options->sync && options->exact);
  EXPECT_EQ(options->timeout, 2.5);
  EXPECT_TRUE(options->log.passes && options->log.traffic);
  EXPECT_EQ(options->dump, "programs.txt");
  EXPECT_EQ(options->program_memory, 0);
  EXPECT_EQ(Given({{"SPMD_OVERLAP", "0"}})->overlap, false);
  EXPECT_EQ(Given({{"SPMD_OVERLAP", "1"}})->overlap, true);
  EXPECT_EQ(Given({})->overlap, std::nullopt);
  EXPECT_FALSE(Given({{"SPMD_OVERLAP", "2"}}).ok());
  EXPECT_EQ(Given({{"SPMD_TURNS", "0"}})->turns, Turns::kNever);
  EXPECT_EQ(Given({{"SPMD_TURNS", "1"}})->turns, Turns::kAlways);
}

TEST(OptionsTest, BadValuesNameTheValuesThatExist) {
  EXPECT_EQ(ErrorOf("SPMD_VERIFY", "ja"), "SPMD_VERIFY is 'ja', which is neither 0 nor 1");
  EXPECT_EQ(ErrorOf("SPMD_TURNS", "2"), "SPMD_TURNS is '2', which is neither 0 nor 1");
  EXPECT_EQ(ErrorOf("SPMD_NUM_DEVICES", "0"),
            "SPMD_NUM_DEVICES is '0', which is not a positive number of devices");
  EXPECT_EQ(ErrorOf("SPMD_PROGRAM_MEMORY", "1G"),
            "SPMD_PROGRAM_MEMORY is '1G', which is not a number of MiB");
  EXPECT_EQ(ErrorOf("SPMD_TIMEOUT", "-1"),
            "SPMD_TIMEOUT is '-1', which is not a positive number of seconds");
  EXPECT_EQ(ErrorOf("SPMD_LOG", "pases"),
            "SPMD_LOG: 'pases' is none of passes, traffic; did you mean 'passes'?");
  EXPECT_EQ(ErrorOf("SPMD_LOG", "everything"), "SPMD_LOG: 'everything' is none of passes, traffic");
}

}  // namespace
}  // namespace spmd
