// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/memory_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/program/analysis.h"
#include "csrc/program/def_use.h"
#include "csrc/util/byte_text.h"

namespace spmd::runtime {

using program::LiveValue;
using program::MemoryReport;
using program::Program;

namespace {

// What is held at the peak.
struct Held {
  int64_t inputs = 0;    // inputs, and outputs, which mostly replace them
  int64_t computed = 0;  // everything else
  // The mesh axis along which most of `inputs` are copies, and the bytes that a device would not
  // hold if they were sharded over it.
  std::string axis;
  int64_t axis_size = 1;
  int64_t copies = 0;
};

// The mesh axes of a grid that have more than one device.
std::vector<std::string> AxisNames(const Grid& grid) {
  std::vector<std::string> names;
  for (int a = 0; a < grid.num_axes(); ++a) {
    const std::string& name = grid.axis(static_cast<AxisId>(a)).axis;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

Held WhatIsHeld(const Program& program, const MemoryReport& report) {
  Held held;
  const program::DefUse facts(program);
  std::vector<LiveValue> kept;
  for (const LiveValue& live : report.live) {
    const bool is_kept = facts.input(live.value) >= 0 || facts.is_output(live.value);
    (is_kept ? held.inputs : held.computed) += live.bytes;
    if (is_kept) kept.push_back(live);
  }
  if (program.grids.empty()) return held;
  const Grid& grid = *program.grids[0];
  for (const std::string& name : AxisNames(grid)) {
    const AxisList axes = grid.SubAxesOf(name);
    const int64_t size = grid.size(axes);
    int64_t copies = 0;
    for (const LiveValue& live : kept) {
      const program::Value& value = program.values[live.value];
      const bool is_copied = value.grid == 0 && (value.sharding.UsedAxes() & MaskOf(axes)) == 0 &&
                             std::any_of(value.type.dims.begin(), value.type.dims.end(),
                                         [&](int64_t n) { return n >= size; });
      if (is_copied) copies += live.bytes - live.bytes / size;
    }
    if (copies > held.copies) held.axis = name, held.axis_size = size, held.copies = copies;
  }
  return held;
}

// The line of the instruction that makes the value, or where else it comes from.
std::string Origin(const Program& program, const program::DefUse& facts, program::ValueId value) {
  const int maker = facts.maker(value);
  if (maker < 0) return absl::StrCat("input ", facts.input(value));
  const int32_t source = program.instructions[maker].source;
  if (source >= 0) return program.sources[source];
  const program::Instruction& made_by = program.instructions[maker];
  return made_by.code == program::OpCode::kCall ? made_by.op
                                                : std::string(program::OpCodeName(made_by.code));
}

// Ways to need less, and whether each alone suffices.
std::string WhatWouldFit(const Held& held, int64_t peak, int64_t limit) {
  const int64_t excess = peak - limit;
  std::vector<std::string> ways;
  if (held.copies > 0) {
    ways.push_back(
        absl::StrCat("shard the inputs that every device along '", held.axis, "' (", held.axis_size,
                     ") has a copy of: up to ", ByteText(held.copies), " less",
                     held.copies >= excess ? ", which is enough" : ", which is not enough alone"));
  }
  const int64_t for_computed = limit - (peak - held.computed);
  if (for_computed > 0) {
    ways.push_back(absl::StrCat("compute less at a time, by torch.utils.checkpoint or a batch of ",
                                std::max<int64_t>(for_computed * 100 / held.computed, 1),
                                " % of this one"));
  } else if (held.copies < excess) {
    ways.push_back(absl::StrCat("shard the inputs over at least ",
                                (held.inputs + limit - 1) / limit, " times as many devices"));
  }
  return absl::StrJoin(ways, "; or ");
}

}  // namespace

int64_t MemoryLimit(const Backend& backend, int64_t limit) {
  const int64_t has = backend.memory_limit();
  return limit > 0 && (has <= 0 || limit < has) ? limit : std::max<int64_t>(has, 0);
}

absl::Status CheckMemory(const Program& program, const Backend& backend, int64_t limit) {
  const int64_t most = MemoryLimit(backend, limit);
  if (most == 0) return absl::OkStatus();
  const MemoryReport report = program::PeakMemory(program);
  if (report.peak_bytes <= most) return absl::OkStatus();
  const Held held = WhatIsHeld(program, report);
  std::string text = absl::StrCat(
      "the program needs ", ByteText(report.peak_bytes), " per device; ", backend.name(), " has ",
      ByteText(most), most == backend.memory_limit() ? "" : ", the limit that was set",
      ". When it is fullest it holds ", ByteText(held.inputs), " of inputs and results, and ",
      ByteText(held.computed),
      " of values between. What would make it fit: ", WhatWouldFit(held, report.peak_bytes, most),
      ".\nThe largest values when it is fullest:");
  const program::DefUse facts(program);
  for (size_t i = 0; i < report.live.size() && i < 10; ++i) {
    const program::Value& value = program.values[report.live[i].value];
    absl::StrAppend(&text, "\n  ", ByteText(report.live[i].bytes), "  %", value.name, ": ",
                    value.type.ToString(), " ", value.sharding.ToString(*program.grids[value.grid]),
                    "  ", Origin(program, facts, report.live[i].value));
  }
  absl::StrAppend(&text,
                  "\nspmd.debug.print_program(), memory() and collectives() show this program.");
  return absl::ResourceExhaustedError(text);
}

}  // namespace spmd::runtime
