// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/trace/session.h"
#include "csrc/util/options.h"

namespace spmd::trace {

// Writes to stderr what SPMD_LOG asks for about a program that has just been compiled.
void LogCompile(const Options::Log& log, const CompiledProgram& program, const CompileEvent& event);

}  // namespace spmd::trace
