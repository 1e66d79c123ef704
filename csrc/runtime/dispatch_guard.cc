// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/dispatch_guard.h"

#include <c10/util/Exception.h>

#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace spmd::runtime {
namespace {

absl::StatusCode CodeOf(const std::exception& e, absl::string_view text) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&e) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&e) != nullptr ||
      absl::StrContains(text, "can't allocate memory")) {
    return absl::StatusCode::kResourceExhausted;
  }
  if (dynamic_cast<const c10::IndexError*>(&e) != nullptr) return absl::StatusCode::kOutOfRange;
  if (dynamic_cast<const c10::NotImplementedError*>(&e) != nullptr) {
    return absl::StatusCode::kUnimplemented;
  }
  if (dynamic_cast<const c10::ValueError*>(&e) != nullptr ||
      dynamic_cast<const c10::TypeError*>(&e) != nullptr) {
    return absl::StatusCode::kInvalidArgument;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

absl::Status StatusFromException(const std::exception& e, absl::string_view context) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  const std::string text = error != nullptr ? error->what_without_backtrace() : e.what();
  return absl::Status(CodeOf(e, text), absl::StrCat(context, ": ", text));
}

}  // namespace spmd::runtime
