// SPDX-License-Identifier: Apache-2.0
// What the verifier says of a program that has one instruction or result besides its inputs.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "csrc/program/program.h"

namespace spmd::program {

inline constexpr char kHead[] = R"(mesh @m [data=2, model=4]
mesh @r [x=4, y=2]
program {
  scalar $0: float
  %x: f32[32,10] @m {data},{model}
  %y: f32[32,10] @m {data},{}
  %u: f32[32,10] @m {data},{} unreduced(sum){model}
  %d: f32[32,10] @m {data},{} donated
)";

inline absl::Status Verdict(absl::string_view body, absl::string_view output = "return") {
  const auto program = Program::Parse(absl::StrCat(kHead, body, "\n", output, "\n}\n"));
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? Verify(*program) : program.status();
}

inline std::string ErrorOf(absl::string_view body, absl::string_view output = "return") {
  const absl::Status status = Verdict(body, output);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
  return std::string(status.message());
}

}  // namespace spmd::program
