// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/propagate/propagate.h"

namespace spmd::propagate {
namespace {

using NameFn = Reasons::NameFn;

std::string Describe(const ir::Graph& graph, ir::ValueId value, const NameFn& name_of) {
  const ir::Value& v = graph.value(value);
  std::string text = absl::StrCat(name_of(value), ": ", v.type.ToString());
  if (v.annotation) {
    absl::StrAppend(&text, " ", v.annotation->sharding.ToString(graph.grid(v.annotation->grid)));
  }
  return text;
}

// The axes, all parts of one mesh axis, that shard a value for one reason, in any of its
// dimensions.
struct CutForReason {
  Reason reason;          // that of the first axis
  std::vector<int> dims;  // by axis
  AxisList axes;
};

// "model", or "a:0=2" for a part with its size.
std::string AxesText(const Grid& grid, const AxisList& axes) {
  const std::string names = grid.AxesToString(axes);
  if (names.find(':') == std::string::npos) return names;
  return absl::StrJoin(axes, ",", [&](std::string* out, AxisId axis) {
    absl::StrAppend(out, grid.AxesToString({axis}), "=", grid.size(axis));
  });
}

// "dimension 0 of %1 is sharded over a:0=2, dimension 1 over a:1=2".
std::string CutText(const ir::Graph& graph, const CutForReason& cut, const NameFn& name_of) {
  const ir::Value& v = graph.value(cut.reason.value);
  const Grid& grid = graph.grid(v.annotation ? v.annotation->grid : 0);
  std::vector<std::string> parts;
  for (size_t i = 0; i < cut.axes.size();) {
    AxisList together;
    const int dim = cut.dims[i];
    for (; i < cut.axes.size() && cut.dims[i] == dim; ++i) together.push_back(cut.axes[i]);
    const std::string of =
        parts.empty() ? absl::StrCat(" of ", name_of(cut.reason.value), " is sharded") : "";
    parts.push_back(absl::StrCat("dimension ", dim, of, " over ", AxesText(grid, together)));
  }
  return absl::StrJoin(parts, ", ");
}

std::string Step(const ir::Graph& graph, const CutForReason& cut, const NameFn& name_of) {
  const Reason& reason = cut.reason;
  const std::string text = CutText(graph, cut, name_of);
  if (reason.from == ir::kNoValue && reason.via == ir::kNoNode) {
    const auto& annotation = graph.value(reason.value).annotation;
    const bool settled = annotation && annotation->hold == ir::Hold::kSettled;
    return absl::StrCat(text, settled ? ": it is stored so" : ": by its mark");
  }
  if (reason.via == ir::kNoNode) {
    return absl::StrCat(text, ": it is the same buffer as ", name_of(reason.from));
  }
  const ir::Node& node = graph.node(reason.via);
  std::string through = absl::StrCat(text, ": through ", node.op);
  if (node.source >= 0) absl::StrAppend(&through, " (", graph.sources()[node.source], ")");
  if (reason.from != ir::kNoValue) {
    absl::StrAppend(&through, " from ", name_of(reason.from));
  }
  return absl::StrCat(through, ", stage '", reason.stage, "'");
}

// The reasons why `axes` shard the value, one entry for all axes that have the same reason.
std::vector<CutForReason> CutsOf(const std::vector<Reason>& reasons, ir::ValueId value,
                                 const AxisList& axes) {
  std::vector<CutForReason> cuts;
  for (const AxisId axis : axes) {
    const auto reason = std::find_if(reasons.begin(), reasons.end(), [&](const Reason& r) {
      return r.value == value && r.axis == axis;
    });
    if (reason == reasons.end()) continue;
    const auto same = std::find_if(cuts.begin(), cuts.end(), [&](const CutForReason& cut) {
      return cut.reason.from == reason->from && cut.reason.via == reason->via &&
             cut.reason.stage == reason->stage;
    });
    CutForReason& cut =
        same == cuts.end() ? cuts.emplace_back(CutForReason{*reason, {}, {}}) : *same;
    cut.dims.push_back(reason->dim);
    cut.axes.push_back(axis);
  }
  return cuts;
}

}  // namespace

std::string Reasons::Explain(const ir::Graph& graph, ir::ValueId value, const NameFn& given) const {
  const NameFn name_of =
      given ? given : [&](ir::ValueId v) { return absl::StrCat("%", graph.value(v).name); };
  std::string text = Describe(graph, value, name_of);
  const ir::Value& v = graph.value(value);
  if (!v.annotation || v.annotation->sharding.DimAxes() == 0) {
    return absl::StrCat(text, "\n  not sharded: no mark reaches it\n");
  }
  absl::StrAppend(&text, "\n");
  // Parts of one mesh axis are explained together.
  const Grid& grid = graph.grid(v.annotation->grid);
  std::vector<AxisList> axes_by_name;
  for (const DimSharding& dim : v.annotation->sharding.dims) {
    for (const AxisId axis : dim.axes) {
      const auto known = std::find_if(
          axes_by_name.begin(), axes_by_name.end(),
          [&](const AxisList& axes) { return grid.axis(axes[0]).axis == grid.axis(axis).axis; });
      (known == axes_by_name.end() ? axes_by_name.emplace_back() : *known).push_back(axis);
    }
  }
  for (const AxisList& axes : axes_by_name) {
    std::vector<CutForReason> open = CutsOf(reasons_, value, axes);
    // Reasons are recorded in the order in which axes spread, so a chain cannot loop. The bound
    // guards against a value that was annotated and also reached.
    for (int steps = 0; !open.empty() && steps < 200; ++steps) {
      const CutForReason cut = open.front();
      open.erase(open.begin());
      absl::StrAppend(&text, "  ", Step(graph, cut, name_of), "\n");
      if (cut.reason.from == ir::kNoValue) continue;
      std::vector<CutForReason> next = CutsOf(reasons_, cut.reason.from, cut.axes);
      open.insert(open.begin(), next.begin(), next.end());
    }
  }
  return text;
}

}  // namespace spmd::propagate
