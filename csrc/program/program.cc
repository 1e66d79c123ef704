// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/program.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/ir/fingerprint.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

constexpr std::array<const char*, 10> kOpCodeNames = {
    "call",     "slice",      "all_gather",     "all_to_all", "permute",
    "exchange", "all_reduce", "reduce_scatter", "term",       "free"};

// Numbers values in the order in which they are defined, so that the order in which a pass created
// them does not matter.
std::vector<int> DefinitionOrder(const Program& program) {
  std::vector<int> order(program.values.size(), -1);
  int next = 0;
  for (const Input& input : program.inputs) order[input.value] = next++;
  for (const Instruction& instruction : program.instructions) {
    for (ValueId result : instruction.results) order[result] = next++;
  }
  return order;
}

class Digest {
 public:
  explicit Digest(const Program& program) : program_(program), order_(DefinitionOrder(program)) {}

  ir::Fingerprint Compute() {
    f_.Add(static_cast<uint64_t>(program_.grids.size()));
    for (const GridPtr& grid : program_.grids) f_.Add(*grid);
    f_.Add(static_cast<uint64_t>(program_.scalars.size()));
    for (ir::ScalarKind kind : program_.scalars) f_.Add(static_cast<int>(kind));
    f_.Add(static_cast<uint64_t>(program_.inputs.size()));
    for (const Input& input : program_.inputs) {
      AddDefinition(input.value);
      f_.Add(input.donated);
    }
    f_.Add(static_cast<uint64_t>(program_.instructions.size()));
    for (const Instruction& instruction : program_.instructions) AddInstruction(instruction);
    f_.Add(static_cast<uint64_t>(program_.outputs.size()));
    for (const Output& output : program_.outputs) {
      AddUse(output.value);
      f_.Add(output.becomes);
    }
    return f_.Finish();
  }

 private:
  void AddUse(ValueId id) { f_.Add(id == kNoValue ? -1 : order_[id]); }

  void AddDefinition(ValueId id) {
    const Value& value = program_.values[id];
    f_.Add(value.type).Add(value.grid).Add(value.sharding);
    f_.Add(static_cast<uint64_t>(value.windows.size()));
    for (const WindowDim& window : value.windows) {
      f_.Add(window.dim).Add(window.extent).Add(window.chunk);
      f_.Add(absl::string_view(window.begin.ToString()));
      f_.Add(absl::string_view(window.end.ToString()));
      f_.Add(static_cast<uint64_t>(window.order.size()));
      for (const Interval& part : window.order) f_.Add(part.begin).Add(part.end);
    }
  }

  void AddInstruction(const Instruction& i) {
    f_.Add(static_cast<int>(i.code)).Add(absl::string_view(i.op));
    f_.Add(static_cast<uint64_t>(i.operands.size()));
    for (ValueId operand : i.operands) AddUse(operand);
    f_.Add(static_cast<uint64_t>(i.groups.size()));
    for (ir::OperandGroup group : i.groups) f_.Add(group.begin).Add(group.size);
    f_.Add(static_cast<uint64_t>(i.results.size()));
    for (ValueId result : i.results) AddDefinition(result);
    f_.Add(i.attributes).Add(static_cast<uint64_t>(i.added_once.size()));
    for (const AddedOnce& once : i.added_once) {
      f_.Add(once.operand).Add(absl::MakeConstSpan(once.axes));
    }
    f_.Add(absl::MakeConstSpan(i.axes)).Add(i.dim).Add(i.to_dim).Add(i.fill);
    f_.Add(i.updates).Add(i.task);
  }

  const Program& program_;
  const std::vector<int> order_;
  ir::Fingerprinter f_;
};

}  // namespace

absl::string_view OpCodeName(OpCode code) { return kOpCodeNames[static_cast<size_t>(code)]; }

Interval WindowDim::At(const Grid& grid, const AxisList& axes, int64_t shard) const {
  const int64_t c = chunk != 0 ? chunk : CeilDiv(extent, grid.size(axes));
  const int64_t start = std::min(extent, c == 0 ? 0 : shard * c);
  const int64_t rest = extent - start;
  const int64_t size = shard == grid.size(axes) - 1 ? rest : std::min(c, rest);
  Expr::Env env;
  env.start = [start](TensorRef, int) { return start; };
  env.size = [size](TensorRef, int) { return size; };
  env.extent = [this](TensorRef, int) { return extent; };
  env.coord = [&](int sub_axis) {
    // The digit of `sub_axis` in the shard's mixed-radix number.
    int64_t rest = shard;
    for (size_t i = axes.size(); i-- > 0; rest /= grid.size(axes[i])) {
      if (axes[i] == sub_axis) return rest % grid.size(axes[i]);
    }
    SPMD_CHECK(false, "sub-axis ", sub_axis, " does not shard the windowed dimension");
    return int64_t{0};
  };
  const int64_t first = begin.Evaluate(env);
  if (size == 0) return {first, first};
  return {first, std::max(first, end.Evaluate(env))};
}

std::vector<Interval> InOrder(absl::Span<const Interval> order, const Interval& at) {
  if (order.empty()) return {at};
  std::vector<Interval> indices;
  int64_t before = 0;  // positions
  for (const Interval& part : order) {
    const Interval here = Intersect(at, {before, before + part.size()});
    if (!here.empty()) {
      indices.push_back({part.begin + here.begin - before, part.begin + here.end - before});
    }
    before += part.size();
  }
  return indices;
}

ValueId Program::AddValue(Value value) {
  const auto id = static_cast<ValueId>(values.size());
  if (value.name.empty()) {
    auto taken = [&](const std::string& name) {
      return std::any_of(values.begin(), values.end(),
                         [&](const Value& v) { return v.name == name; });
    };
    int64_t number = id;
    do {
      value.name = absl::StrCat(number++);
    } while (taken(value.name));
  }
  values.push_back(std::move(value));
  return id;
}

int32_t Program::AddSource(absl::string_view line) {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == line) return static_cast<int32_t>(i);
  }
  sources.emplace_back(line);
  return static_cast<int32_t>(sources.size()) - 1;
}

Layout Program::LayoutOf(ValueId id) const {
  const Value& value = values[id];
  return Layout(grids[value.grid], value.sharding, value.type.dims);
}

Box Program::TileBox(ValueId id, int64_t tile) const {
  const Value& value = values[id];
  const Layout layout = LayoutOf(id);
  Box box = layout.BoxOfTile(tile);
  if (value.windows.empty()) return box;
  const Grid& grid = *grids[value.grid];
  const int64_t position = layout.FirstPositionOf(tile);
  for (const WindowDim& window : value.windows) {
    const AxisList& axes = value.sharding.dims[window.dim].axes;
    box[window.dim] = window.At(grid, axes, grid.Coordinate(position, axes));
  }
  return box;
}

int64_t Program::TileBytes(ValueId id) const {
  const Value& value = values[id];
  const Layout layout = LayoutOf(id);
  if (value.windows.empty()) return layout.MaxTileElements() * ByteSize(value.type.dtype);
  int64_t elements = 1;
  for (int d = 0; d < layout.rank(); ++d) {
    int64_t largest = std::max(layout.ShardInterval(d, 0).size(),
                               layout.ShardInterval(d, layout.num_shards(d) - 1).size());
    for (const WindowDim& window : value.windows) {
      if (window.dim != d) continue;
      largest = 0;
      for (int64_t shard = 0; shard < layout.num_shards(d); ++shard) {
        const AxisList& axes = value.sharding.dims[d].axes;
        largest = std::max(largest, window.At(*grids[value.grid], axes, shard).size());
      }
    }
    elements *= largest;
  }
  return elements * ByteSize(value.type.dtype);
}

ir::Graph::Fingerprint Program::ComputeFingerprint() const { return Digest(*this).Compute(); }

}  // namespace spmd::program
