// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/device/status_to_exception.h"

#include <c10/util/Exception.h>

#include <string>

namespace spmd::trace {

void Throw(const absl::Status& status) {
  const std::string message(status.message());
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
      throw c10::ValueError(here, message);
    case absl::StatusCode::kOutOfRange:
      throw c10::IndexError(here, message);
    case absl::StatusCode::kUnimplemented:
      throw c10::NotImplementedError(here, message);
    case absl::StatusCode::kResourceExhausted:
      throw c10::OutOfMemoryError(here, message);
    default:
      throw c10::Error(here, message);
  }
}

}  // namespace spmd::trace
