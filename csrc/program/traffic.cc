// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "csrc/cost/price.h"
#include "csrc/program/analysis.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

// The indices along each dimension that a device needs of a value.
using Needed = absl::InlinedVector<std::vector<Interval>, 5>;

Needed NeededBy(const Program& program, ValueId id, int64_t tile) {
  const Value& value = program.values[id];
  Needed needed;
  for (const Interval& part : program.TileBox(id, tile)) needed.push_back({part});
  for (const WindowDim& window : value.windows) {
    needed[window.dim] = InOrder(window.order, needed[window.dim][0]);
  }
  return needed;
}

// The number of elements that are needed and in the box.
int64_t CountIn(const Box& box, const Needed& needed) {
  int64_t elements = 1;
  for (size_t d = 0; d < box.size(); ++d) {
    int64_t indices = 0;
    for (const Interval& part : needed[d]) indices += Intersect(part, box[d]).size();
    elements *= indices;
  }
  return elements;
}

// Bytes of value `to` that the worst-off device has to fetch: its new box, less the part outside
// the value (filled, not sent), less what its old box holds.
int64_t FetchedBytes(const Program& program, ValueId from, ValueId to) {
  const Value& old_value = program.values[from];
  const Value& new_value = program.values[to];
  const Layout old_layout = program.LayoutOf(from);
  const Layout new_layout = program.LayoutOf(to);
  const Box whole = WholeBox(new_value.type.dims);
  absl::flat_hash_map<int64_t, int64_t> old_position;  // by device id
  const auto& old_ids = program.grids[old_value.grid]->device_ids();
  for (size_t p = 0; p < old_ids.size(); ++p) old_position[old_ids[p]] = static_cast<int64_t>(p);
  const auto& new_ids = program.grids[new_value.grid]->device_ids();
  int64_t worst = 0;
  for (size_t p = 0; p < new_ids.size(); ++p) {
    const Needed needed = NeededBy(program, to, new_layout.TileAt(static_cast<int64_t>(p)));
    int64_t elements = CountIn(whole, needed);
    const auto it = old_position.find(new_ids[p]);
    if (it != old_position.end()) {
      const int64_t tile = old_layout.TileAt(it->second);
      // A device holds one term along unreduced axes; the term of another coordinate is other data.
      if (old_layout.TermOfTile(tile) == new_layout.TermOfTile(new_layout.TileAt(p))) {
        elements -= CountIn(Intersect(program.TileBox(from, tile), whole), needed);
      }
    }
    worst = std::max(worst, elements);
  }
  return worst * ByteSize(new_value.type.dtype);
}

// The axes over which the boxes of operand or result are sharded.
AxisList AxesOfExchange(const Program& program, const Instruction& instruction) {
  if (!instruction.axes.empty()) return instruction.axes;
  AxisMask mask = 0;
  const int grid = program.values[instruction.results[0]].grid;
  for (size_t k = 0; k < instruction.results.size(); ++k) {
    for (ValueId id : {instruction.operands[k], instruction.results[k]}) {
      if (program.values[id].grid == grid) mask |= program.values[id].sharding.DimAxes();
    }
  }
  AxisList axes;
  for (int i = 0; i < program.grids[grid]->num_axes(); ++i) {
    if (mask & MaskOf(static_cast<AxisId>(i))) axes.push_back(static_cast<AxisId>(i));
  }
  return axes;
}

// Bytes that the worst-off device is sent of a value whose dimensions are sharded anew.
double ExchangedBytes(const Program& program, ValueId from, ValueId to) {
  const Value& before = program.values[from];
  const Value& after = program.values[to];
  if (before.grid == after.grid && before.windows.empty() && after.windows.empty()) {
    const Grid& grid = *program.grids[after.grid];
    const cost::Exchange exchange = cost::DescribeExchange(
        after.type, grid, cost::Normalized(before.sharding, before.type, grid),
        cost::Normalized(after.sharding, after.type, grid));
    if (exchange.is_exact) return exchange.bytes;
  }
  return static_cast<double>(FetchedBytes(program, from, to));
}

double WireBytes(const Program& program, const Instruction& instruction, size_t k, int64_t n) {
  const auto reduced = [&](cost::MoveKind kind) {
    return cost::ReductionBytes(kind,
                                static_cast<double>(program.TileBytes(instruction.results[k])), n);
  };
  switch (instruction.code) {
    case OpCode::kReduceScatter:
      return reduced(cost::MoveKind::kReduceScatter);
    case OpCode::kAllReduce:
      return reduced(cost::MoveKind::kAllReduce);
    case OpCode::kAllGather:
    case OpCode::kAllToAll:
    case OpCode::kPermute:
    case OpCode::kExchange:
      return ExchangedBytes(program, instruction.operands[k], instruction.results[k]);
    case OpCode::kCall:
    case OpCode::kSlice:
    case OpCode::kTerm:
    case OpCode::kFree:
      return 0;
  }
  return 0;
}

}  // namespace

std::vector<Traffic> CollectiveTraffic(const Program& program) {
  std::vector<Traffic> rows;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (!Communicates(instruction.code)) continue;
    Traffic row{};
    row.instruction = static_cast<int>(i);
    row.code = instruction.code;
    row.axes = AxesOfExchange(program, instruction);
    row.group_size = program.grids[program.values[instruction.results[0]].grid]->size(row.axes);
    row.count = static_cast<int64_t>(instruction.results.size());
    for (size_t k = 0; k < instruction.results.size(); ++k) {
      row.payload_bytes += program.TileBytes(instruction.results[k]);
      row.wire_bytes += cost::WholeBytes(WireBytes(program, instruction, k, row.group_size));
    }
    if (instruction.source >= 0) row.source = program.sources[instruction.source];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace spmd::program
