// SPDX-License-Identifier: Apache-2.0
// absl::Status → Python exceptions, for the bindings.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

// Throws what Python code would raise: InvalidArgument and NotFound → ValueError, OutOfRange →
// IndexError, Unimplemented → NotImplementedError, ResourceExhausted → torch.OutOfMemoryError, the
// rest → RuntimeError. Requires: !status.ok().
[[noreturn]] void Throw(const absl::Status& status);

inline void Check(const absl::Status& status) {
  if (!status.ok()) Throw(status);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) Throw(value.status());
  return *std::move(value);
}

// Lets c10's errors (which the dispatcher's side throws) arrive as the exceptions that torch's own
// bindings would make of them, message only.
void init_errors(py::module& m);

}  // namespace spmd::python
