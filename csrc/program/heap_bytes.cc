// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/heap_bytes.h"

namespace spmd {

int64_t HeapBytes(const Expr& expr) {
  constexpr int64_t kNode = 96;  // a tree node with its reference count
  if (expr.IsConst()) return kNode;
  int64_t variables = 0;
  expr.ForEachVariable([&](const Expr&) { ++variables; });
  return kNode * (2 * variables + 1);  // each operator or constant goes with a variable
}

int64_t HeapBytes(const Attributes& attributes) {
  int64_t bytes = attributes.empty() ? 0 : kBlockBytes;
  for (const auto& item : attributes) {
    bytes += static_cast<int64_t>(sizeof(item)) + HeapBytes(item.first);
    bytes += std::visit([](const auto& value) { return HeapBytes(value); }, item.second);
  }
  return bytes;
}

namespace ir {

using spmd::HeapBytes;

// Found by HeapBytes of std::vector<Value> and the like through argument-dependent lookup.
static int64_t HeapBytes(const Annotation& a) { return HeapBytes(a.sharding); }
static int64_t HeapBytes(const Value& v) {
  return HeapBytes(v.type) + HeapBytes(v.name) + HeapBytes(v.annotation);
}
static int64_t HeapBytes(const FactorCut& cut) { return HeapBytes(cut.axes); }
static int64_t HeapBytes(const Node& node) {
  return HeapBytes(node.op) + HeapBytes(node.operands) + HeapBytes(node.groups) +
         HeapBytes(node.attributes) + HeapBytes(node.cut);
}

int64_t HeapBytes(const Graph& graph) {
  int64_t bytes = HeapBytes(graph.nodes()) + HeapBytes(graph.inputs()) +
                  HeapBytes(graph.outputs()) + HeapBytes(graph.scalars()) +
                  HeapBytes(graph.sources());
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    bytes += static_cast<int64_t>(sizeof(Value)) + HeapBytes(graph.value(id));
  }
  return bytes;
}

}  // namespace ir

namespace program {

using spmd::HeapBytes;

static int64_t HeapBytes(const WindowDim& window) {
  return HeapBytes(window.begin) + HeapBytes(window.end) + HeapBytes(window.order);
}
static int64_t HeapBytes(const Value& v) {
  return HeapBytes(v.type) + HeapBytes(v.sharding) + HeapBytes(v.windows) + HeapBytes(v.name);
}
static int64_t HeapBytes(const AddedOnce& added) { return HeapBytes(added.axes); }
static int64_t HeapBytes(const Instruction& instruction) {
  return HeapBytes(instruction.op) + HeapBytes(instruction.operands) +
         HeapBytes(instruction.groups) + HeapBytes(instruction.results) +
         HeapBytes(instruction.attributes) + HeapBytes(instruction.added_once) +
         HeapBytes(instruction.axes);
}

int64_t HeapBytes(const Program& program) {
  return HeapBytes(program.grid_names) + HeapBytes(program.scalars) + HeapBytes(program.sources) +
         HeapBytes(program.values) + HeapBytes(program.inputs) + HeapBytes(program.instructions) +
         HeapBytes(program.outputs);
}

}  // namespace program

}  // namespace spmd
