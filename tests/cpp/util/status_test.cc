// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace spmd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(n, " is odd"));
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  SPMD_ASSIGN_OR_RETURN(const int half, Half(n));
  SPMD_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status Even(int n) {
  SPMD_RETURN_IF_ERROR(Half(n).status());
  return absl::OkStatus();
}

TEST(Status, TheFirstErrorIsReturnedAsItIs) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(7).status(), absl::InvalidArgumentError("7 is odd"));
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("3 is odd"));
  EXPECT_TRUE(Even(4).ok());
  EXPECT_EQ(Even(5), absl::InvalidArgumentError("5 is odd"));
}

TEST(Status, ABrokenRequirementNamesThePlaceAndTheCondition) {
  const int n = 3;
  EXPECT_NO_THROW(SPMD_CHECK(n == 3, "n is ", n));
  EXPECT_THAT([&] { SPMD_CHECK(n == 4, "n is ", n); },
              ThrowsMessage<std::logic_error>(
                  AllOf(HasSubstr("status_test.cc"), HasSubstr("n == 4"), HasSubstr("n is 3"))));
}

TEST(Status, AnInputThatDoesNotFitIsSaidInItsOwnWords) {
  EXPECT_NO_THROW(SPMD_REQUIRE(true, "nothing"));
  EXPECT_THAT([] { SPMD_REQUIRE(false, "dim ", 4, " is out of range"); },
              ThrowsMessage<std::invalid_argument>("dim 4 is out of range"));
}

}  // namespace
}  // namespace spmd
