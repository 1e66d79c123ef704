// SPDX-License-Identifier: Apache-2.0
// The only place where errors as values become exceptions.
//
//   InvalidArgument, NotFound, AlreadyExists  ValueError (c10::ValueError)
//   OutOfRange                                IndexError (c10::IndexError)
//   Unimplemented                             NotImplementedError (c10::NotImplementedError)
//   ResourceExhausted                         OutOfMemoryError (c10::OutOfMemoryError)
//   everything else                           RuntimeError (c10::Error)
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spmd::trace {

// Requires: !status.ok().
[[noreturn]] void Throw(const absl::Status& status);

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) Throw(status);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) Throw(value.status());
  return *std::move(value);
}

}  // namespace spmd::trace
