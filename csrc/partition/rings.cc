// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/rings.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "csrc/partition/rewrite.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/rule.h"
#include "csrc/rules/tables/rings.h"
#include "csrc/util/byte_text.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

const rules::RingForm* FormOf(const ir::Node& node) {
  const rules::Rule* rule = rules::Find(node.op);
  return rule == nullptr ? nullptr : rule->ring;
}

// The axes over which the dimension is sharded in blocks of one size; null if it is not.
const AxisList* AxesOf(const ir::Graph& graph, ir::ValueId v, int dim) {
  const auto& annotation = graph.value(v).annotation;
  if (!annotation || annotation->sharding.rank() <= dim) return nullptr;
  const DimSharding& sharding = annotation->sharding.dims[dim];
  return sharding.axes.empty() || sharding.chunk != 0 ? nullptr : &sharding.axes;
}

// The devices around which a node's blocks can travel: those that share the blocks of what stays
// and of what travels alike. 0 if there are none.
int64_t DevicesOfRing(const ir::Graph& graph, const ir::Node& node, const rules::RingForm& form) {
  const ir::ValueId stays = node.operands[form.stays];
  const AxisList* axes = AxesOf(graph, stays, form.dim);
  if (axes == nullptr) return 0;
  const int grid = graph.value(stays).annotation->grid;
  for (const int k : form.travels) {
    const ir::ValueId travels = node.operands[k];
    const AxisList* of_travelling = AxesOf(graph, travels, form.dim);
    if (of_travelling == nullptr || *of_travelling != *axes ||
        graph.value(travels).annotation->grid != grid) {
      return 0;
    }
  }
  const int64_t devices = graph.grid(grid).size(*axes);
  return devices > 1 && devices <= kLongestRing ? devices : 0;
}

}  // namespace

bool MayGoInRings(const ir::Graph& graph) {
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const rules::RingForm* form = FormOf(graph.node(id));
    if (form != nullptr && DevicesOfRing(graph, graph.node(id), *form) > 0) return true;
  }
  return false;
}

absl::StatusOr<std::vector<std::string>> PutInRings(ir::Graph& graph) {
  std::vector<std::string> ops;
  const auto replace = [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
                           absl::Span<const ir::ValueId> operands)
      -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
    const ir::Node& node = old.node(id);
    const rules::RingForm* form = FormOf(node);
    const int64_t devices = form == nullptr ? 0 : DevicesOfRing(old, node, *form);
    if (devices == 0) return std::nullopt;
    SPMD_ASSIGN_OR_RETURN(std::vector<ir::ValueId> values,
                          form->write(builder, old, node, operands, devices));
    if (values.empty()) return std::nullopt;
    ops.push_back(node.op);
    return values;
  };
  SPMD_ASSIGN_OR_RETURN(ir::Graph next, Rewrite(graph, replace));
  if (!ops.empty()) graph = std::move(next);
  return ops;
}

std::string InRings::ToString() const {
  if (ops.empty()) return "";
  std::map<std::string, int> times;
  for (const std::string& op : ops) ++times[op];
  std::string text =
      absl::StrCat("computes ",
                   absl::StrJoin(times, " and ",
                                 [](std::string* out, const auto& op) {
                                   absl::StrAppend(out, op.first, op.second == 1 ? "" : " ");
                                   if (op.second > 1)
                                     absl::StrAppend(out, "(", op.second, " times)");
                                 }),
                   " around rings of devices");
  return absl::StrCat(
      text, " to hold ", ByteText(bytes_after), " instead of ", ByteText(bytes_before), ", sends ",
      ByteText(wire_after), " instead of ", ByteText(wire_before), ", and is estimated to take ",
      absl::StrFormat("%.3g ms instead of %.3g ms", 1e3 * seconds_after, 1e3 * seconds_before));
}

}  // namespace spmd::partition
