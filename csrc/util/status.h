// SPDX-License-Identifier: Apache-2.0
// absl::Status plumbing. Inside the core errors are values; they become exceptions only at the two
// edges (csrc/trace, csrc/python).
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define SPMD_CONCAT_IMPL(a, b) a##b
#define SPMD_CONCAT(a, b) SPMD_CONCAT_IMPL(a, b)

#define SPMD_RETURN_IF_ERROR(expr)                                    \
  do {                                                                \
    if (absl::Status spmd_s_ = (expr); !spmd_s_.ok()) return spmd_s_; \
  } while (false)

#define SPMD_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp.ok()) return std::move(tmp).status();   \
  lhs = *std::move(tmp)

#define SPMD_ASSIGN_OR_RETURN(lhs, expr) \
  SPMD_ASSIGN_OR_RETURN_IMPL(SPMD_CONCAT(spmd_or_, __LINE__), lhs, expr)

// A broken `Requires:` is a bug in torch_spmd. Throws std::logic_error with the place and the
// message rather than abort, since the process holds a user's work.
#define SPMD_CHECK(cond, ...)                                                               \
  do {                                                                                      \
    if (!(cond)) ::spmd::CheckFailed(__FILE__, __LINE__, #cond, absl::StrCat(__VA_ARGS__)); \
  } while (false)

// Throws std::invalid_argument with the message where an input does not fit, for instance an op
// without an attribute that its rule needs. Code that runs on input written by others turns the
// exception into a status (rules::Guarded).
#define SPMD_REQUIRE(cond, ...)                                 \
  do {                                                          \
    if (!(cond)) ::spmd::DoesNotFit(absl::StrCat(__VA_ARGS__)); \
  } while (false)

namespace spmd {

[[noreturn]] void DoesNotFit(const std::string& message);
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace spmd
