// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/log.h"

#include <cstdio>

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

}  // namespace spmd::trace
