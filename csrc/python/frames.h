// SPDX-License-Identifier: Apache-2.0
// What the session asks of Python.
#pragma once

#include <string>
#include <vector>

#include "csrc/trace/session.h"

namespace spmd::python {

// Requires: called once, with the GIL, before the first op. Frames of files under `library_folders`
// (torch, torch_spmd) are not the user's.
trace::PythonHooks MakePythonHooks(std::vector<std::string> library_folders);

}  // namespace spmd::python
