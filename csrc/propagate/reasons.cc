// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "csrc/propagate/propagate.h"

namespace spmd::propagate {
namespace {

std::string Describe(const ir::Graph& graph, ir::ValueId value) {
  const ir::Value& v = graph.value(value);
  std::string text = absl::StrCat("%", v.name, ": ", v.type.ToString());
  if (v.annotation) {
    absl::StrAppend(&text, " ", v.annotation->sharding.ToString(graph.grid(v.annotation->grid)));
  }
  return text;
}

std::string Step(const ir::Graph& graph, const Reason& reason) {
  const ir::Value& v = graph.value(reason.value);
  const Grid& grid = graph.grid(v.annotation ? v.annotation->grid : 0);
  std::string text = absl::StrCat("dimension ", reason.dim, " of %", v.name, " is cut by ",
                                  grid.AxesToString({reason.axis}));
  if (reason.from == ir::kNoValue && reason.via == ir::kNoNode) {
    return absl::StrCat(text, ": annotated so");
  }
  if (reason.via == ir::kNoNode) {
    return absl::StrCat(text, ": it is the same buffer as %", graph.value(reason.from).name);
  }
  const ir::Node& node = graph.node(reason.via);
  absl::StrAppend(&text, ": through ", node.op);
  if (node.source >= 0) absl::StrAppend(&text, " (", graph.sources()[node.source], ")");
  if (reason.from != ir::kNoValue) absl::StrAppend(&text, " from %", graph.value(reason.from).name);
  return absl::StrCat(text, ", stage '", reason.stage, "'");
}

}  // namespace

std::string Reasons::Explain(const ir::Graph& graph, ir::ValueId value) const {
  std::string text = Describe(graph, value);
  const ir::Value& v = graph.value(value);
  if (!v.annotation || v.annotation->sharding.DimAxes() == 0) {
    return absl::StrCat(text, "\n  not cut: no annotation reaches it\n");
  }
  absl::StrAppend(&text, "\n");
  for (int d = 0; d < v.type.rank(); ++d) {
    for (AxisId axis : v.annotation->sharding.dims[d].axes) {
      ir::ValueId at = value;
      // Reasons are recorded in the order in which axes spread, so a chain cannot loop; the bound
      // guards against a value that was annotated and reached as well.
      for (int steps = 0; at != ir::kNoValue && steps < 200; ++steps) {
        const Reason* found = nullptr;
        for (const Reason& r : reasons_) {
          if (r.value == at && r.axis == axis) {
            found = &r;
            break;
          }
        }
        if (found == nullptr) break;
        absl::StrAppend(&text, "  ", Step(graph, *found), "\n");
        at = found->from;
      }
    }
  }
  return text;
}

}  // namespace spmd::propagate
