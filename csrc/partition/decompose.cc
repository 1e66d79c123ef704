// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/rewrite.h"
#include "csrc/propagate/factor_cut.h"
#include "csrc/rules/registry.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

// Whether a whole factor is sharded in `v`, so that its dimension would be gathered.
bool CutsWholeFactor(const ir::Graph& graph, ir::ValueId v, const propagate::NodeFactors& nf,
                     const rules::TensorFactors& tensor) {
  const ir::Annotation& annotation = *graph.value(v).annotation;
  const Grid& grid = graph.grid(annotation.grid);
  const Sharding sharding = annotation.sharding.Reduced();
  if (sharding.DimAxes() == 0) return false;
  const propagate::Cut cut = propagate::CutOf(*nf, tensor, graph.type(v).dims, sharding, grid);
  return std::any_of(tensor.begin(), tensor.end(), [&](const auto& factors) {
    return std::any_of(factors.begin(), factors.end(),
                       [&](int f) { return nf->factors[f].whole && !cut[f].axes.empty(); });
  });
}

bool IsMade(const ir::Graph& graph, ir::ValueId v) {
  const ir::NodeId maker = graph.value(v).producer;
  return maker != ir::kNoNode && graph.node(maker).operands.empty();
}

}  // namespace

bool MayWriteToMade(const ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors) {
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (factors[id].rule == nullptr || factors[id].rule->decompose == nullptr) continue;
    const auto& operands = graph.node(id).operands;
    const auto is_made = [&](ir::ValueId v) { return v != ir::kNoValue && IsMade(graph, v); };
    if (std::any_of(operands.begin(), operands.end(), is_made)) return true;
  }
  return false;
}

absl::StatusOr<bool> Decompose(ir::Graph& graph, const std::vector<propagate::NodeFactors>& factors,
                               IntoMade into_made, std::vector<std::string>& names,
                               bool& any_made) {
  std::vector<bool> gathers(graph.num_nodes(), false);
  bool any = false;
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const propagate::NodeFactors& nf = factors[id];
    if (nf.rule == nullptr || nf.rule->decompose == nullptr) continue;
    const ir::Node& node = graph.node(id);
    // What remains after a reduction over the dimension is small, and such reductions are merged,
    // so a gather is never cheaper.
    bool made = false;
    for (size_t k = 0; k < node.operands.size() && !gathers[id]; ++k) {
      const ir::ValueId operand = node.operands[k];
      if (operand == ir::kNoValue || !CutsWholeFactor(graph, operand, nf, nf->operands[k]))
        continue;
      if (IsMade(graph, operand)) {
        made = true;
      } else {
        gathers[id] = true;
      }
    }
    if (made && !gathers[id]) {
      any_made = true;
      gathers[id] = into_made == IntoMade::kDecompose;
    }
    any = any || gathers[id];
  }
  if (!any) return false;

  any = false;
  const auto replace = [&](rules::Builder& builder, const ir::Graph& old, ir::NodeId id,
                           absl::Span<const ir::ValueId> operands)
      -> absl::StatusOr<std::optional<std::vector<ir::ValueId>>> {
    if (!gathers[id]) return std::nullopt;
    const ir::Node& node = old.node(id);
    SPMD_ASSIGN_OR_RETURN(std::vector<ir::ValueId> values,
                          rules::Decomposed(*rules::Find(node.op), builder, old, node, operands));
    if (values.empty()) return std::nullopt;
    any = true;
    names.push_back(node.op);
    return values;
  };
  SPMD_ASSIGN_OR_RETURN(ir::Graph next, Rewrite(graph, replace));
  if (any) graph = std::move(next);
  return any;
}

}  // namespace spmd::partition
