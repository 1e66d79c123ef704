// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "csrc/trace/api/session.h"
#include "torch/csrc/utils/pybind.h"

namespace spmd::python {

// The seconds of a program on the machine called `on`, or on the backend's, as plain values.
// `efficiency` replaces the machine's. Keys
// are the fields of timeline::Timeline, entries the tuples (op, value, stream, start, seconds,
// FLOPs, bytes, recomputed, line).
py::dict TimelineOf(const trace::CompiledProgram& compiled, const std::optional<std::string>& on,
                    std::optional<double> efficiency);

}  // namespace spmd::python
