// SPDX-License-Identifier: Apache-2.0
#include "csrc/ir/verifier.h"

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/syntax.h"
#include "csrc/util/status.h"

namespace spmd::ir {
namespace {

template <typename... Parts>
absl::Status Broken(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("verifier: ", parts...));
}

std::string ValueText(const Graph& graph, ValueId id) {
  return absl::StrCat("value '%", graph.value(id).name, "'");
}

// "node 3 'aten::mm' (%7)".
std::string NodeText(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return absl::StrCat(
      "node ", id, " '", node.op, "'",
      node.num_results > 0 ? absl::StrCat(" (%", graph.value(node.first_result).name, ")") : "");
}

bool IsValue(const Graph& graph, ValueId id) { return id >= 0 && id < graph.num_values(); }
bool IsGrid(const Graph& graph, int grid) {
  return grid >= 0 && grid < static_cast<int>(graph.grids().size());
}

// Clause 1.
absl::Status VerifyOperands(const Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    for (size_t k = 0; k < node.operands.size(); ++k) {
      const ValueId operand = node.operands[k];
      if (operand == kNoValue) continue;
      if (!IsValue(graph, operand)) {
        return Broken(NodeText(graph, id), ": operand ", k, " is value number ", operand,
                      ", which does not exist");
      }
      if (operand >= node.first_result) {
        return Broken(NodeText(graph, id), ": operand ", k, ", ", ValueText(graph, operand),
                      ", is defined later; operands come from inputs and earlier nodes");
      }
    }
  }
  return absl::OkStatus();
}

// Clause 2.
absl::Status VerifyGroups(const Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    int end = 0;
    for (OperandGroup group : node.groups) {
      const int limit = static_cast<int>(node.operands.size());
      if (group.begin < end || group.size < 0 || group.begin > limit - group.size) {
        return Broken(NodeText(graph, id), ": operand group [", group.begin, ", ",
                      group.begin + int64_t{group.size}, ") does not lie in [", end, ", ", limit,
                      "), what earlier groups leave of the operands");
      }
      end = group.begin + group.size;
    }
  }
  return absl::OkStatus();
}

// Clause 3.
absl::Status VerifyNames(const Graph& graph) {
  absl::flat_hash_map<absl::string_view, ValueId> taken;
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    const std::string& name = graph.value(id).name;
    if (!IsValueName(name)) {
      return Broken("value number ", id, " is named '", name,
                    "', which is neither an identifier nor a number of at most nine digits");
    }
    if (const auto [it, inserted] = taken.try_emplace(name, id); !inserted) {
      return Broken("values number ", it->second, " and ", id, " are both named '%", name, "'");
    }
  }
  absl::flat_hash_set<absl::string_view> meshes;
  for (size_t g = 0; g < graph.grids().size(); ++g) {
    if (!IsIdentifier(graph.grid_name(g))) {
      return Broken("mesh number ", g, " is named '", graph.grid_name(g),
                    "', which is no identifier");
    }
    if (!meshes.insert(graph.grid_name(g)).second) {
      return Broken("two meshes are named '@", graph.grid_name(g), "'");
    }
  }
  return absl::OkStatus();
}

// Clause 4.
absl::Status VerifyOutputs(const Graph& graph) {
  absl::flat_hash_map<ValueId, size_t> replaced;
  for (size_t k = 0; k < graph.outputs().size(); ++k) {
    const Output& output = graph.outputs()[k];
    if (!IsValue(graph, output.value)) {
      return Broken("output ", k, " is value number ", output.value, ", which does not exist");
    }
    if (output.becomes == kNoValue) continue;
    if (!IsValue(graph, output.becomes) || graph.value(output.becomes).producer != kNoNode) {
      return Broken("output ", k, " (%", graph.value(output.value).name, ") becomes ",
                    IsValue(graph, output.becomes) ? ValueText(graph, output.becomes)
                                                   : absl::StrCat("value ", output.becomes),
                    ", which is no input");
    }
    const TensorType& from = graph.type(output.value);
    const TensorType& to = graph.type(output.becomes);
    if (!(from == to)) {
      return Broken("output ", k, " (%", graph.value(output.value).name, ") of type ",
                    from.ToString(), " becomes input '%", graph.value(output.becomes).name,
                    "' of type ", to.ToString(), "; they must agree");
    }
    if (const auto [it, inserted] = replaced.try_emplace(output.becomes, k); !inserted) {
      return Broken("outputs ", it->second, " and ", k, " both become input '%",
                    graph.value(output.becomes).name, "'");
    }
  }
  return absl::OkStatus();
}

// Clause 5.
absl::Status VerifyAttributes(const Graph& graph) {
  const int slots = static_cast<int>(graph.scalars().size());
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    for (const auto& [name, value] : graph.node(id).attributes) {
      if (!IsIdentifier(name)) {
        return Broken(NodeText(graph, id), ": attribute name '", name, "' is no identifier");
      }
      if (const auto* scalar = std::get_if<RuntimeScalar>(&value);
          scalar != nullptr && (scalar->slot < 0 || scalar->slot >= slots)) {
        return Broken(NodeText(graph, id), ": attribute '", name, "' is run-time scalar $",
                      scalar->slot, ", but the graph declares ", slots);
      }
      if (std::holds_alternative<Expr>(value) || std::holds_alternative<std::vector<Expr>>(value)) {
        return Broken(NodeText(graph, id), ": attribute ", name, "=", AttrToString(value),
                      " holds an expression; expressions belong to programs");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyAxes(const Grid& grid, absl::Span<const AxisId> axes, AxisMask& used,
                        absl::string_view where) {
  for (AxisId axis : axes) {
    if (axis < 0 || axis >= grid.num_axes()) {
      return Broken(where, ": axis number ", static_cast<int>(axis), " is not in mesh ",
                    grid.ToString());
    }
    if (used & MaskOf(axis)) {
      return Broken(where, ": axis '", grid.AxesToString({axis}), "' is used twice");
    }
    used |= MaskOf(axis);
  }
  return absl::OkStatus();
}

absl::Status VerifyAnnotation(const Graph& graph, ValueId id, const Annotation& annotation) {
  const std::string where = absl::StrCat("annotation of ", ValueText(graph, id));
  if (!IsGrid(graph, annotation.grid)) {
    return Broken(where, ": mesh number ", annotation.grid, " does not exist");
  }
  const Sharding& sharding = annotation.sharding;
  const TensorType& type = graph.type(id);
  if (sharding.rank() != type.rank()) {
    return Broken(where, ": the sharding has ", sharding.rank(), " dimensions, the type ",
                  type.ToString(), " has ", type.rank());
  }
  const Grid& grid = graph.grid(annotation.grid);
  const Value& value = graph.value(id);
  AxisMask used = 0;
  if (value.manual != 0) {
    if (value.manual_grid != annotation.grid) {
      return Broken(where, ": the value is in a manual region of another mesh");
    }
    used = value.manual;
  }
  AxisMask manual = 0;
  SPMD_RETURN_IF_ERROR(VerifyAxes(grid, sharding.manual, manual, where));
  if (manual != 0 && manual != value.manual) {
    return Broken(where, ": the value has other manual axes");
  }
  for (int d = 0; d < sharding.rank(); ++d) {
    const DimSharding& dim = sharding.dims[d];
    SPMD_RETURN_IF_ERROR(VerifyAxes(grid, dim.axes, used, where));
    if (dim.chunk == 0) continue;
    const int64_t least = CeilDiv(type.dims[d], grid.size(absl::MakeConstSpan(dim.axes)) + 1);
    if (dim.axes.empty() || dim.chunk < least) {
      return Broken(where, ": chunk ", dim.chunk, " of dimension ", d,
                    dim.axes.empty() ? std::string(", which is not sharded")
                                     : absl::StrCat(" is less than ", least, ", so that ",
                                                    type.dims[d], " elements do not fit"));
    }
  }
  return VerifyAxes(grid, sharding.unreduced, used, where);
}

// Clause 6.
absl::Status VerifyAnnotations(const Graph& graph) {
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    const std::optional<Annotation>& annotation = graph.value(id).annotation;
    if (annotation.has_value()) {
      SPMD_RETURN_IF_ERROR(VerifyAnnotation(graph, id, *annotation));
    }
  }
  return absl::OkStatus();
}

// Clause 7.
absl::Status VerifyUpdates(const Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (node.updates == -1) continue;
    const int count = static_cast<int>(node.operands.size());
    if (node.updates < 0 || node.updates >= count || node.operands[node.updates] == kNoValue) {
      return Broken(NodeText(graph, id), ": updates(", node.updates, ") names no operand of ",
                    count);
    }
  }
  return absl::OkStatus();
}

// Clause 8.
absl::Status VerifyCuts(const Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (!node.cut.has_value()) continue;
    const std::string where = absl::StrCat("cut of ", NodeText(graph, id));
    if (!IsGrid(graph, node.cut_grid)) {
      return Broken(where, ": mesh number ", node.cut_grid, " does not exist");
    }
    AxisMask used = 0;
    for (const FactorCut& cut : *node.cut) {
      SPMD_RETURN_IF_ERROR(VerifyAxes(graph.grid(node.cut_grid), cut.axes, used, where));
      if (cut.chunk < 0 || (cut.chunk > 0 && cut.axes.empty())) {
        return Broken(where, ": chunk ", cut.chunk, " of factor ", cut.factor,
                      "; chunks are positive and need axes");
      }
    }
  }
  return absl::OkStatus();
}

// Clause 9.
absl::Status VerifyOps(const Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (node.op == "call" || node.op == "manual") {
      return Broken(NodeText(graph, id), ": the op '", node.op, "' is reserved");
    }
    if (node.source < -1 || node.source >= static_cast<int>(graph.sources().size())) {
      return Broken(NodeText(graph, id), ": source ", node.source, " does not exist");
    }
  }
  return absl::OkStatus();
}

// The sizes of a border, and the axes of which each device has its own value.
absl::Status VerifyBorder(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Border& border = *node.border;
  if (node.operands.size() != 1 || node.operands[0] == kNoValue || node.num_results != 1) {
    return Broken(NodeText(graph, id), ": a border has one operand and one result");
  }
  const Value& operand = graph.value(node.operands[0]);
  const Dims& global = border.enters ? operand.type.dims : graph.type(node.first_result).dims;
  const Dims& local = border.enters ? graph.type(node.first_result).dims : operand.type.dims;
  const Grid& grid = graph.grid(border.grid);
  bool fits = global.size() == local.size() && border.sharding.rank() == operand.type.rank() &&
              (border.enters ? !border.sharding.IsUnreduced() : border.sharding.manual.empty());
  for (size_t d = 0; fits && d < global.size(); ++d) {
    const DimSharding& dim = border.sharding.dims[d];
    fits = !dim.open && dim.chunk == 0 && global[d] == local[d] * grid.size(dim.axes);
  }
  if (!fits) {
    return Broken(NodeText(graph, id), ": ", DimsToString(local), " is no device's part of ",
                  DimsToString(global), " in the sharding ", border.sharding.ToString(grid));
  }
  const AxisMask axes = border.axes();
  const AxisMask had = operand.manual_grid == border.grid ? operand.manual & axes : 0;
  if (border.enters ? had != 0 : had != axes) {
    return Broken(NodeText(graph, id), ": each device has its own value along '",
                  grid.AxesToString(AxesIn(had)), "' of '", grid.AxesToString(AxesIn(axes)),
                  border.enters ? "' already" : "' only");
  }
  return absl::OkStatus();
}

// Clause 10.
absl::Status VerifyRegions(const Graph& graph) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    const auto border = ParseBorder(node.attributes, graph.grids(), graph.grid_names());
    if (!border.ok()) return Broken(NodeText(graph, id), ": ", border.status().message());
    if (node.border != nullptr) SPMD_RETURN_IF_ERROR(VerifyBorder(graph, id));
    for (const ValueId v : node.operands) {
      if (v == kNoValue || graph.value(v).manual == 0) continue;
      if (graph.value(v).manual_grid != node.manual_grid) {
        return Broken(NodeText(graph, id), ": ", ValueText(graph, v),
                      " is in a manual region of another mesh");
      }
    }
  }
  return absl::OkStatus();
}

// Names are verified first, since the other messages use them.
constexpr absl::Status (*kClauses[])(const Graph&) = {
    VerifyNames,   VerifyOperands,    VerifyGroups,  VerifyOutputs, VerifyAttributes,
    VerifyRegions, VerifyAnnotations, VerifyUpdates, VerifyCuts,    VerifyOps,
};

}  // namespace

absl::Status Verify(const Graph& graph) {
  for (const auto& clause : kClauses) SPMD_RETURN_IF_ERROR(clause(graph));
  return absl::OkStatus();
}

}  // namespace spmd::ir
