// SPDX-License-Identifier: Apache-2.0
// Graph::ToString; the form is described in graph.h. Error messages print graphs that break
// invariants, so a missing value or grid is written with a '?': "%?7", "@?3".
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/ir/graph.h"
#include "csrc/ir/syntax.h"

namespace spmd::ir {
namespace {

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string Print() {
    for (size_t g = 0; g < graph_.grids().size(); ++g) {
      absl::StrAppend(&text_, MeshToString(graph_.grid_name(g), graph_.grid(g)), "\n");
    }
    absl::StrAppend(&text_, "graph {\n");
    for (size_t slot = 0; slot < graph_.scalars().size(); ++slot) {
      Line(ScalarToString(slot, graph_.scalars()[slot]));
    }
    // Inputs are written where they were added, so that parsing gives the values the same numbers.
    auto input = graph_.inputs().begin();
    for (const Node& node : graph_.nodes()) {
      for (; input != graph_.inputs().end() && *input < node.first_result; ++input) {
        Line(Defined(*input));
      }
      PrintNode(node);
    }
    for (; input != graph_.inputs().end(); ++input) Line(Defined(*input));
    PrintOutputs();
    return text_ + "}\n";
  }

 private:
  void Line(absl::string_view line) { absl::StrAppend(&text_, "  ", line, "\n"); }

  std::string Name(ValueId id) const {
    const bool exists = id >= 0 && id < graph_.num_values();
    return exists ? absl::StrCat("%", graph_.value(id).name) : absl::StrCat("%?", id);
  }

  bool IsGrid(int g) const { return g >= 0 && g < static_cast<int>(graph_.grids().size()); }
  std::string GridName(int g) const {
    return IsGrid(g) ? absl::StrCat("@", graph_.grid_name(g)) : absl::StrCat("@?", g);
  }
  // A missing grid is replaced by one without axes.
  const Grid& GridAt(int g) const { return IsGrid(g) ? graph_.grid(g) : *none_; }

  // "%x: f32[2,3] @m {data},{}".
  std::string Defined(ValueId id) const {
    const Value& value = graph_.value(id);
    std::string text = absl::StrCat("%", value.name, ": ", value.type.ToString());
    if (!value.annotation.has_value()) return text;
    const Annotation& annotation = *value.annotation;
    const char* hold = annotation.hold == Hold::kSettled   ? "~"
                       : annotation.hold == Hold::kDerived ? "="
                       : annotation.of_parameter           ? "!"
                                                           : "";
    absl::StrAppend(&text, " ", GridName(annotation.grid), hold);
    const std::string sharding = annotation.sharding.ToString(GridAt(annotation.grid));
    if (!sharding.empty()) absl::StrAppend(&text, " ", sharding);
    return text;
  }

  void PrintNode(const Node& node) {
    std::vector<std::string> results;
    for (int k = 0; k < node.num_results; ++k) results.push_back(Defined(node.first_result + k));
    std::string line = absl::StrJoin(results, ", ");
    absl::StrAppend(&line, line.empty() ? "= " : " = ", node.op,
                    ArgumentsToString(node.operands, node.groups, node.attributes,
                                      [this](ValueId id) { return Name(id); }));
    if (node.updates != -1) absl::StrAppend(&line, " updates(", node.updates, ")");
    if (node.task != 0) absl::StrAppend(&line, " task(", node.task, ")");
    if (node.cut.has_value()) absl::StrAppend(&line, " ", Cut(node));
    if (node.source != -1) {
      absl::StrAppend(&line, " at ", SourceOf(node));
    }
    Line(line);
  }

  std::string SourceOf(const Node& node) const {
    const bool exists =
        node.source >= 0 && node.source < static_cast<int32_t>(graph_.sources().size());
    return Quote(exists ? graph_.sources()[node.source] : absl::StrCat("?", node.source));
  }

  std::string Cut(const Node& node) const {
    const std::string grid = node.cut_grid == 0 ? "" : absl::StrCat(GridName(node.cut_grid), " ");
    return absl::StrCat("cut ", grid, "{",
                        absl::StrJoin(*node.cut, ", ",
                                      [&](std::string* out, const FactorCut& cut) {
                                        absl::StrAppend(
                                            out, cut.factor, ": ",
                                            GridAt(node.cut_grid).AxesToString(cut.axes));
                                        if (cut.chunk != 0)
                                          absl::StrAppend(out, " chunk=", cut.chunk);
                                      }),
                        "}");
  }

  void PrintOutputs() {
    const std::string outputs =
        absl::StrJoin(graph_.outputs(), ", ", [this](std::string* out, const Output& output) {
          absl::StrAppend(out, Name(output.value));
          if (output.becomes != kNoValue) absl::StrAppend(out, " -> ", Name(output.becomes));
          if (output.may_stay_unreduced) absl::StrAppend(out, " unreduced");
          if (output.held) absl::StrAppend(out, " held");
        });
    Line(outputs.empty() ? "return" : absl::StrCat("return ", outputs));
  }

  const Graph& graph_;
  const GridPtr none_ = Grid::SingleDevice();
  std::string text_;
};

}  // namespace

std::string Graph::ToString() const { return Printer(*this).Print(); }

}  // namespace spmd::ir
