// SPDX-License-Identifier: Apache-2.0
// Errors at the boundary to Python. absl::Status becomes a c10 error in
// csrc/trace/device/status_to_exception.h; here c10 errors become the exceptions that torch's own
// bindings would raise, with the message only.
#pragma once

#include "csrc/trace/device/status_to_exception.h"

namespace spmd::python {

using trace::ThrowIfError;
using trace::ValueOrThrow;

}  // namespace spmd::python
