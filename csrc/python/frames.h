// SPDX-License-Identifier: Apache-2.0
// What the session needs from Python.
#pragma once

#include <string>
#include <vector>

#include "csrc/trace/api/session.h"

namespace spmd::python {

// The session's hooks into Python. Frames of files in `library_folders` (torch, torch_spmd) are not
// the user's.
// Requires: called once, with the GIL held, before the first op.
trace::PythonHooks MakePythonHooks(std::vector<std::string> library_folders);

}  // namespace spmd::python
