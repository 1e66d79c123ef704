// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "csrc/trace/program/diagnostics.h"
#include "csrc/util/options.h"

namespace spmd::trace {

// Writes to stderr what SPMD_LOG asks for about a program that has just been compiled.
void LogCompile(const Options::Log& log, const CompiledProgram& program, const CompileEvent& event);

// Appends the graph and the program to the file that SPMD_DUMP names, in one write, so that the
// texts of several processes do not mix. The text has no numbers that depend on what else the
// process compiled: equal programs have equal texts.
// Errors: Unavailable if the file cannot be written.
absl::Status DumpCompile(const std::string& file, const CompiledProgram& program);

}  // namespace spmd::trace
