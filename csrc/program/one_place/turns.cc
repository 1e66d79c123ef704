// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/one_place/turns.h"

#include <algorithm>
#include <string>
#include <vector>

#include "csrc/program/analysis.h"
#include "csrc/program/one_place/coalesce.h"

namespace spmd::program {
namespace {

int64_t WholeBytes(const Value& value) {
  return value.type.NumElements() * ByteSize(value.type.dtype);
}

bool Cuts(AxisMask axes, const Value& value) { return (value.sharding.UsedAxes() & axes) != 0; }

// True if a group's tile of `value` is the union of its devices' tiles: the axes are major, the
// shards even.
bool GroupsHoldWhatDevicesDo(const Program& program, const Value& value, AxisMask axes) {
  const Grid& grid = *program.grids[value.grid];
  for (int d = 0; d < value.sharding.rank(); ++d) {
    const DimSharding& dim = value.sharding.dims[d];
    if ((MaskOf(dim.axes) & axes) == 0) continue;
    const auto is_kept = [&](AxisId a) { return (MaskOf(a) & axes) != 0; };
    if (!std::is_partitioned(dim.axes.begin(), dim.axes.end(), is_kept)) return false;
    const int64_t extent = value.type.dims[d], shards = grid.size(dim.axes);
    if (extent % shards != 0 || (dim.chunk != 0 && dim.chunk != extent / shards)) return false;
    for (const WindowDim& window : value.windows) {
      if (window.dim == d) return false;
    }
  }
  return true;
}

bool Possible(const Program& program, AxisMask axes) {
  return std::all_of(program.values.begin(), program.values.end(), [&](const Value& value) {
    return GroupsHoldWhatDevicesDo(program, value, axes);
  });
}

// Bytes of inputs and outputs that are sharded over `axes`.
int64_t BytesAtTheBorder(const Program& program, AxisMask axes) {
  int64_t bytes = 0;
  const auto add = [&](ValueId id) {
    const Value& value = program.values[id];
    if (Cuts(axes, value)) bytes += WholeBytes(value);
  };
  for (const Input& input : program.inputs) add(input.value);
  for (const Output& output : program.outputs) add(output.value);
  return bytes;
}

bool IsUnreducedAtTheBorder(const Program& program, AxisMask axes) {
  const auto is = [&](ValueId id) {
    return (program.values[id].sharding.UnreducedAxes() & axes) != 0;
  };
  return std::any_of(program.inputs.begin(), program.inputs.end(),
                     [&](const Input& input) { return is(input.value); }) ||
         std::any_of(program.outputs.begin(), program.outputs.end(),
                     [&](const Output& output) { return is(output.value); });
}

bool Pays(const Program& program, AxisMask axes, const TurnOptions& options) {
  int64_t cut = 0, made = 0, calls = 0;
  for (const Value& value : program.values) {
    if (Cuts(axes, value)) cut += WholeBytes(value);
  }
  if (cut < options.least_saved) return false;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.code != OpCode::kCall) continue;
    ++calls;
    for (ValueId id : instruction.results) made += WholeBytes(program.values[id]);
  }
  if (calls == 0 || made / calls / program.grids[0]->SizeOfMask(axes) < options.least_made)
    return false;
  const MemoryReport whole = PeakMemory(Coalesce(program));
  int64_t saved = 0;
  for (const LiveValue& live : whole.live) {
    if (Cuts(axes, program.values[live.value])) saved += live.bytes;
  }
  return saved >= options.least_saved && saved >= whole.peak_bytes / 4 &&
         BytesAtTheBorder(program, axes) <= saved / 8;
}

}  // namespace

AxisMask AxesForTurns(const Program& program, const TurnOptions& options) {
  if (program.grids.size() != 1) return 0;
  const Grid& grid = *program.grids[0];
  std::vector<std::string> seen;
  for (AxisId a = 0; a < grid.num_axes(); ++a) {
    const std::string& name = grid.axis(a).axis;
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
    seen.push_back(name);
    AxisMask axes = 0;
    int64_t groups = 1;
    for (AxisId part : grid.SubAxesOf(name)) {
      if (groups * grid.size(part) > options.most_groups) break;
      groups *= grid.size(part);
      axes |= MaskOf(part);
    }
    if (groups <= options.more_groups_than || IsUnreducedAtTheBorder(program, axes) ||
        !Possible(program, axes)) {
      continue;
    }
    if (!options.where_it_pays || Pays(program, axes, options)) return axes;
  }
  return 0;
}

}  // namespace spmd::program
