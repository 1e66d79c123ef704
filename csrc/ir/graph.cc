// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/graph.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/syntax.h"

namespace spmd::ir {

absl::string_view ScalarKindName(ScalarKind kind) {
  switch (kind) {
    case ScalarKind::kBool:
      return "bool";
    case ScalarKind::kInt:
      return "int";
    case ScalarKind::kFloat:
      return "float";
    case ScalarKind::kComplex:
      return "complex";
  }
  return "?";
}

int Graph::AddGrid(GridPtr grid, std::string name) {
  grids_.push_back(std::move(grid));
  grid_names_.push_back(std::move(name));
  return static_cast<int>(grids_.size()) - 1;
}

int Graph::AddScalar(ScalarKind kind) {
  scalars_.push_back(kind);
  return static_cast<int>(scalars_.size()) - 1;
}

int32_t Graph::AddSource(std::string line) {
  sources_.push_back(std::move(line));
  return static_cast<int32_t>(sources_.size()) - 1;
}

ValueId Graph::AddValue(Value value) {
  const ValueId id = num_values();
  if (value.name.empty()) value.name = absl::StrCat(next_number_);
  values_.emplace_back();
  values_.back() = std::move(value);
  SetName(id, std::move(values_.back().name));
  return id;
}

void Graph::SetName(ValueId id, std::string name) {
  int64_t number = 0;
  // A value that gets a name gives the latest number back.
  if (next_number_ > 0 && values_[id].name == absl::StrCat(next_number_ - 1)) --next_number_;
  if (IsNumberName(name) && absl::SimpleAtoi(name, &number)) {
    next_number_ = std::max(next_number_, number + 1);
  }
  values_[id].name = std::move(name);
}

ValueId Graph::AddInput(TensorType type, std::string name) {
  Value value;
  value.type = std::move(type);
  value.index = static_cast<int>(inputs_.size());
  value.name = std::move(name);
  inputs_.push_back(num_values());
  return AddValue(std::move(value));
}

NodeId Graph::AddNode(NodeSpec spec, absl::Span<const TensorType> results) {
  Node node;
  node.op = std::move(spec.op);
  node.operands = std::move(spec.operands);
  node.groups = std::move(spec.groups);
  node.attributes = std::move(spec.attributes);
  node.updates = spec.updates;
  node.task = spec.task;
  node.source = spec.source;
  node.first_result = num_values();
  node.num_results = static_cast<int>(results.size());
  const NodeId id = num_nodes();
  for (const ValueId v : node.operands) {
    if (v < 0 || v >= num_values() || values_[v].manual == 0) continue;
    node.manual |= values_[v].manual;
    node.manual_grid = values_[v].manual_grid;
  }
  AxisMask made = node.manual;
  // What cannot be read is an error of Verify.
  if (auto border = ParseBorder(node.attributes, grids_, grid_names_);
      border.ok() && *border != nullptr) {
    node.border = *std::move(border);
    made = node.border->enters ? made | node.border->axes() : made & ~node.border->axes();
    node.manual |= node.border->axes();
    node.manual_grid = node.border->grid;
  }
  for (int k = 0; k < node.num_results; ++k) {
    Value value;
    value.type = results[k];
    value.producer = id;
    value.index = k;
    value.manual = made;
    value.manual_grid = node.manual_grid;
    AddValue(std::move(value));
  }
  nodes_.push_back(std::move(node));
  return id;
}

ValueId Graph::Add(NodeSpec spec, TensorType result) {
  return this->result(AddNode(std::move(spec), absl::MakeConstSpan(&result, 1)));
}

void Graph::Annotate(ValueId id, Annotation annotation) {
  Value& value = values_[id];
  if (value.producer == kNoNode) {
    value.manual = annotation.sharding.ManualAxes();
    value.manual_grid = annotation.grid;
  }
  value.annotation = std::move(annotation);
}

void Graph::SetCut(NodeId id, int grid, std::vector<FactorCut> cut) {
  nodes_[id].cut_grid = grid;
  nodes_[id].cut = std::move(cut);
}

std::vector<std::vector<NodeId>> Graph::Users() const {
  std::vector<std::vector<NodeId>> users(values_.size());
  for (NodeId id = 0; id < num_nodes(); ++id) {
    for (ValueId operand : nodes_[id].operands) {
      if (operand == kNoValue) continue;
      std::vector<NodeId>& list = users[operand];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return users;
}

}  // namespace spmd::ir
