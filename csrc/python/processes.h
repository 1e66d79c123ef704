// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "csrc/trace/session/python_hooks.h"

namespace spmd::python {

// PythonHooks::join_job.
absl::StatusOr<std::optional<trace::JobConnection>> JoinJob(double timeout);

}  // namespace spmd::python
