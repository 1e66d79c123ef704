// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/compile_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "csrc/program/analysis.h"

namespace spmd::trace {

void LogCompile(const Options::Log& log, const CompiledProgram& program,
                const CompileEvent& event) {
  std::string text;
  if (log.passes) {
    absl::StrAppendFormat(&text, "spmd: program %d (%s, %s): %d ops, %d instructions\n",
                          event.number, event.cut, event.reason, event.records, event.instructions);
    absl::StrAppendFormat(&text, "spmd:   %-12s %8.2f ms\n", "lower", event.lower_ms);
    for (const auto& pass : program.compiled.times) {
      absl::StrAppendFormat(&text, "spmd:   %-12s %8.2f ms\n", pass.pass, pass.ms);
    }
    absl::StrAppendFormat(&text, "spmd:   %-12s %8.2f ms\n", "load", event.load_ms);
  }
  if (log.traffic) {
    const program::Program& p = program.program();
    int64_t wire = 0;
    for (const program::Traffic& t : program::CollectiveTraffic(p)) {
      const program::Instruction& i = p.instructions[t.instruction];
      const int grid = i.operands.empty() ? 0 : p.values[i.operands[0]].grid;
      wire += t.wire_bytes;
      absl::StrAppendFormat(&text, "spmd:   %-14s %-12s %12d bytes, %12d on the wire  %s\n",
                            OpCodeName(t.code), p.grids[grid]->AxesToString(t.axes),
                            t.payload_bytes, t.wire_bytes, t.source);
    }
    absl::StrAppendFormat(&text, "spmd: program %d sends %d bytes per device\n", event.number,
                          wire);
  }
  std::fputs(text.c_str(), stderr);
}

absl::Status DumpCompile(const std::string& file, const CompiledProgram& program) {
  const std::string text = absl::StrCat("=== graph\n", program.traced.ToString(), "=== program\n",
                                        program.program().ToString());
  const int to = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  const bool written =
      to >= 0 && write(to, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const absl::Status status =
      written ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat("SPMD_DUMP: '", file,
                                                    "' cannot be written: ", std::strerror(errno)));
  if (to >= 0) close(to);
  return status;
}

}  // namespace spmd::trace
