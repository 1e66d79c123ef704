// SPDX-License-Identifier: Apache-2.0
// Errors at the boundary to Python. absl::Status becomes a c10 error in
// csrc/trace/device/status_to_exception.h; here c10 errors become the exceptions that torch's own
// bindings would raise, with the message only.
#pragma once

#include <exception>

#include "csrc/trace/device/status_to_exception.h"

namespace spmd::python {

using trace::ThrowIfError;
using trace::ValueOrThrow;

// Sets Python's error to what a binding that throws `error` raises. Throws an error of another kind
// again.
void SetError(std::exception_ptr error);

}  // namespace spmd::python
