// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "csrc/cost/move.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

// Seconds to gather the dimensions of `v` in which a whole factor is cut; 0 when none is.
double GatherSeconds(const ir::Graph& graph, ir::ValueId v, const propagate::NodeFactors& nf,
                     const rules::TensorFactors& tensor, const machine::Machine& machine) {
  const ir::Annotation& annotation = *graph.value(v).annotation;
  const Grid& grid = graph.grid(annotation.grid);
  const Sharding sharding = annotation.sharding.Reduced();
  if (sharding.DimAxes() == 0) return 0;
  const propagate::Cut cut = propagate::CutOf(*nf, tensor, graph.type(v).dims, sharding, grid);
  Sharding gathered = sharding;
  bool any = false;
  for (size_t d = 0; d < tensor.size(); ++d) {
    for (int f : tensor[d]) {
      if (nf->factors[f].whole && !cut[f].axes.empty()) {
        gathered.dims[d] = DimSharding{};
        any = true;
      }
    }
  }
  if (!any) return 0;
  return cost::PlanMove(graph.type(v), grid, sharding, gathered, machine).seconds;
}

}  // namespace

absl::Status Decompose(ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
                       const machine::Machine& machine, std::vector<std::string>* decomposed) {
  std::vector<bool> gathers(graph.num_nodes(), false);
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const propagate::NodeFactors& nf = factors[id];
    if (nf.rule == nullptr || nf.rule->decompose == nullptr) continue;
    const ir::Node& node = graph.node(id);
    double seconds = 0;
    for (size_t k = 0; k < node.operands.size(); ++k) {
      if (node.operands[k] == ir::kNoValue) continue;
      seconds += GatherSeconds(graph, node.operands[k], nf, nf->operands[k], machine);
    }
    // What is left after reducing over the dimension is small, and such reductions are merged: a
    // gather is never cheaper.
    gathers[id] = seconds > 0;
  }
  if (std::none_of(gathers.begin(), gathers.end(), [](bool g) { return g; })) {
    return absl::OkStatus();
  }
  const size_t before = decomposed->size();
  SPMD_ASSIGN_OR_RETURN(ir::Graph next,
                        Rewrite(graph,
                                [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
                                    absl::Span<const ir::ValueId> operands)
                                    -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
                                  if (!gathers[id]) return std::nullopt;
                                  const ir::Node& node = old.node(id);
                                  SPMD_ASSIGN_OR_RETURN(
                                      std::vector<ir::ValueId> values,
                                      factors[id].rule->decompose(builder, old, node, operands));
                                  if (values.empty()) return std::nullopt;
                                  decomposed->push_back(node.op);
                                  return values;
                                }));
  if (decomposed->size() > before) graph = std::move(next);
  return absl::OkStatus();
}

}  // namespace spmd::partition
