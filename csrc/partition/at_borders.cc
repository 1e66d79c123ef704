// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/at_borders.h"

#include <algorithm>

#include "csrc/cost/move.h"

namespace spmd::partition {

std::optional<Sharding> RequiredAtOutput(const ir::Graph& graph, const ir::Output& output) {
  if (output.becomes == ir::kNoValue) return std::nullopt;
  return graph.value(output.becomes).annotation->sharding.Closed().Reduced();
}

bool LeavesAsTerms(const ir::Graph& graph, const ir::Output& output, const Sharding& produced,
                   int grid) {
  if (!output.may_stay_unreduced && !output.held) return false;
  if (!produced.IsUnreduced()) return false;
  const ir::ValueId model = output.becomes != ir::kNoValue ? output.becomes : output.value;
  const ir::Annotation& asked = *graph.value(model).annotation;
  if (asked.grid != grid || asked.hold == ir::Hold::kCommitted) return false;
  const TensorType& type = graph.type(output.value);
  return cost::TileBytes(type, produced, graph.grid(grid)) <=
         cost::TileBytes(type, asked.sharding.Closed(), graph.grid(grid));
}

bool IsConstraint(const ir::Graph& graph, ir::ValueId value) {
  const ir::Value& v = graph.value(value);
  return v.producer != ir::kNoNode && v.annotation && v.annotation->hold == ir::Hold::kCommitted;
}

bool MeetsConstraint(const ir::Graph& graph, ir::ValueId value, const Sharding& made, int grid) {
  const ir::Annotation& asked = *graph.value(value).annotation;
  if (grid != asked.grid || made.IsUnreduced() || asked.sharding.IsUnreduced()) return false;
  for (int d = 0; d < made.rank(); ++d) {
    if (made.dims[d].axes != asked.sharding.dims[d].axes) return false;
    // A device may hold 5 % more than the user asked for.
    const int64_t n = graph.type(value).dims[d];
    const int64_t most = cost::MaxShardSize(asked.sharding.dims[d], n, graph.grid(grid));
    if (20 * cost::MaxShardSize(made.dims[d], n, graph.grid(grid)) > 21 * most) return false;
  }
  return std::none_of(graph.outputs().begin(), graph.outputs().end(),
                      [&](const ir::Output& output) { return output.value == value; });
}

}  // namespace spmd::partition
