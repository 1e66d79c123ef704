// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/runtime/environment.h"
#include "csrc/trace/program/diagnostics.h"

namespace spmd::trace {

// Writes to stderr what SPMD_LOG asks for about a program that has just been compiled.
void LogCompile(const runtime::Log& log, const CompiledProgram& program, const CompileEvent& event);

}  // namespace spmd::trace
