// SPDX-License-Identifier: Apache-2.0
// Graph::Parse: the inverse of printer.cc. It reports what is no text of a graph; what is a text but
// breaks an invariant is left to the verifier, so that a broken graph can be written in a test.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "csrc/ir/graph.h"
#include "csrc/ir/syntax.h"
#include "csrc/util/status.h"

namespace spmd::ir {
namespace {

// A value to be defined: name, type and annotation.
struct Definition {
  std::string name;
  TensorType type;
  std::optional<Annotation> annotation;
};

class Parser {
 public:
  explicit Parser(absl::string_view text) : lines_(SplitLines(text)) {}

  absl::StatusOr<Graph> Parse() {
    for (const Line& line : lines_) {
      Cursor cursor(line);
      SPMD_RETURN_IF_ERROR(Statement(cursor));
    }
    if (state_ == State::kDone) return std::move(graph_);
    return absl::InvalidArgumentError(
        absl::StrCat("line ", lines_.empty() ? 1 : lines_.back().number,
                     ": the text ends before the graph does; expected ",
                     state_ == State::kMeshes   ? "'graph {'"
                     : state_ == State::kBody ? "'return'"
                                              : "'}'"));
  }

 private:
  enum class State { kMeshes, kBody, kReturned, kDone };

  absl::Status Statement(Cursor& cursor) {
    switch (state_) {
      case State::kMeshes: return Header(cursor);
      case State::kBody: return Body(cursor);
      case State::kReturned:
        SPMD_RETURN_IF_ERROR(cursor.Expect("}"));
        state_ = State::kDone;
        return cursor.ExpectEnd();
      case State::kDone: return cursor.Expected("nothing after the graph's '}'");
    }
    return absl::OkStatus();
  }

  absl::Status Header(Cursor& cursor) {
    if (cursor.ConsumeWord("mesh")) {
      SPMD_ASSIGN_OR_RETURN(NamedGrid named, ParseMesh(cursor));
      for (size_t g = 0; g < graph_.grids().size(); ++g) {
        if (graph_.grid_name(g) == named.name) {
          return cursor.Error(absl::StrCat("mesh '@", named.name, "' is already defined"));
        }
      }
      graph_.AddGrid(std::move(named.grid), std::move(named.name));
      return absl::OkStatus();
    }
    if (!cursor.ConsumeWord("graph")) return cursor.Expected("'mesh' or 'graph {'");
    SPMD_RETURN_IF_ERROR(cursor.Expect("{"));
    state_ = State::kBody;
    return cursor.ExpectEnd();
  }

  absl::Status Body(Cursor& cursor) {
    if (cursor.At("%") || cursor.At("=")) return Definitions(cursor);
    if (cursor.ConsumeWord("scalar")) {
      SPMD_ASSIGN_OR_RETURN(const ScalarKind kind,
                            ParseScalar(cursor, static_cast<int>(graph_.scalars().size())));
      graph_.AddScalar(kind);
      return absl::OkStatus();
    }
    if (cursor.ConsumeWord("return")) {
      state_ = State::kReturned;
      return Outputs(cursor);
    }
    return cursor.Expected("a value like '%x: f32[2]', 'scalar' or 'return'");
  }

  // An input, or the results of a node and the node.
  absl::Status Definitions(Cursor& cursor) {
    std::vector<Definition> definitions;
    if (!cursor.At("=")) {
      do {
        SPMD_ASSIGN_OR_RETURN(Definition definition, Define(cursor));
        definitions.push_back(std::move(definition));
      } while (cursor.Consume(","));
    }
    const ValueId first = graph_.num_values();
    if (cursor.Consume("=")) {
      SPMD_RETURN_IF_ERROR(ParseNode(cursor, definitions));
    } else {
      if (definitions.size() != 1) return cursor.Expected("'=' after several results");
      SPMD_RETURN_IF_ERROR(cursor.ExpectEnd());
      graph_.AddInput(definitions[0].type);
    }
    for (size_t k = 0; k < definitions.size(); ++k) {
      SPMD_RETURN_IF_ERROR(names_.Define(cursor, definitions[k].name, first + k));
    }
    // Last first, so that the numbers the values were born with become free again.
    for (size_t k = definitions.size(); k-- > 0;) {
      graph_.SetName(first + k, std::move(definitions[k].name));
      if (definitions[k].annotation) graph_.Annotate(first + k, *definitions[k].annotation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Definition> Define(Cursor& cursor) {
    Definition definition;
    SPMD_ASSIGN_OR_RETURN(definition.name, cursor.ValueName());
    SPMD_RETURN_IF_ERROR(cursor.Expect(":"));
    SPMD_ASSIGN_OR_RETURN(definition.type, ParseType(cursor));
    if (!cursor.At("@")) return definition;
    Annotation annotation;
    SPMD_ASSIGN_OR_RETURN(annotation.grid, GridRef(cursor));
    if (cursor.ConsumeAdjacent("~")) {
      annotation.hold = Hold::kSettled;
    } else if (cursor.ConsumeAdjacent("=")) {
      annotation.hold = Hold::kDerived;
    }
    SPMD_ASSIGN_OR_RETURN(annotation.sharding,
                          ParseSharding(cursor, graph_.grid(annotation.grid)));
    definition.annotation = std::move(annotation);
    return definition;
  }

  // "@m".
  absl::StatusOr<int> GridRef(Cursor& cursor) {
    SPMD_RETURN_IF_ERROR(cursor.Expect("@"));
    SPMD_ASSIGN_OR_RETURN(const std::string name, cursor.Identifier("the name of a mesh"));
    for (size_t g = 0; g < graph_.grids().size(); ++g) {
      if (graph_.grid_name(g) == name) return static_cast<int>(g);
    }
    return cursor.Error(absl::StrCat("there is no mesh '@", name, "'"));
  }

  absl::Status ParseNode(Cursor& cursor, const std::vector<Definition>& definitions) {
    Graph::NodeSpec spec;
    SPMD_ASSIGN_OR_RETURN(spec.op, cursor.OpName());
    SPMD_ASSIGN_OR_RETURN(Arguments arguments, ParseArguments(cursor, names_));
    spec.operands = std::move(arguments.operands);
    spec.groups = std::move(arguments.groups);
    spec.attributes = std::move(arguments.attributes);
    if (cursor.ConsumeWord("updates")) {
      SPMD_ASSIGN_OR_RETURN(const int64_t operand, InParentheses(cursor));
      if (operand < 0 || operand > std::numeric_limits<int>::max()) {
        return cursor.Error(absl::StrCat("updates(", operand, ") names no operand"));
      }
      spec.updates = static_cast<int>(operand);
    }
    if (cursor.ConsumeWord("task")) {
      SPMD_ASSIGN_OR_RETURN(spec.task, InParentheses(cursor));
    }
    std::optional<std::vector<FactorCut>> cut;
    int cut_grid = 0;
    if (cursor.ConsumeWord("cut")) {
      SPMD_ASSIGN_OR_RETURN(cut, Cut(cursor, cut_grid));
    }
    if (cursor.ConsumeWord("at")) {
      SPMD_ASSIGN_OR_RETURN(std::string source, cursor.QuotedString());
      spec.source = Source(std::move(source));
    }
    SPMD_RETURN_IF_ERROR(cursor.ExpectEnd());
    std::vector<TensorType> types;
    for (const Definition& definition : definitions) types.push_back(definition.type);
    const NodeId node = graph_.AddNode(std::move(spec), types);
    if (cut.has_value()) graph_.SetCut(node, cut_grid, *std::move(cut));
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> InParentheses(Cursor& cursor) {
    SPMD_RETURN_IF_ERROR(cursor.Expect("("));
    SPMD_ASSIGN_OR_RETURN(const int64_t value, cursor.Integer("an integer"));
    SPMD_RETURN_IF_ERROR(cursor.Expect(")"));
    return value;
  }

  // "@r {0: data,model:1, 2: x}". Axis names do not start with digits, factors do.
  absl::StatusOr<std::vector<FactorCut>> Cut(Cursor& cursor, int& grid) {
    if (cursor.At("@")) {
      SPMD_ASSIGN_OR_RETURN(grid, GridRef(cursor));
    }
    if (graph_.grids().empty()) return cursor.Error("a cut needs a mesh, and there is none");
    std::vector<FactorCut> cuts;
    SPMD_RETURN_IF_ERROR(cursor.Expect("{"));
    if (cursor.Consume("}")) return cuts;
    do {
      SPMD_ASSIGN_OR_RETURN(const int64_t factor, cursor.Integer("the number of a factor"));
      if (factor < 0 || factor > std::numeric_limits<int16_t>::max()) {
        return cursor.Error(absl::StrCat("there is no factor ", factor));
      }
      SPMD_RETURN_IF_ERROR(cursor.Expect(":"));
      SPMD_ASSIGN_OR_RETURN(AxisList axes, CutAxes(cursor, graph_.grid(grid)));
      cuts.push_back({static_cast<int>(factor), std::move(axes)});
    } while (cursor.Consume(","));
    SPMD_RETURN_IF_ERROR(cursor.Expect("}"));
    return cuts;
  }

  absl::StatusOr<AxisList> CutAxes(Cursor& cursor, const Grid& grid) {
    std::string list;
    Cursor ahead = cursor;
    do {
      absl::StatusOr<std::string> axis = ahead.Identifier("an axis");
      if (!axis.ok()) break;
      absl::StrAppend(&list, list.empty() ? "" : ",", *axis);
      if (ahead.ConsumeAdjacent(":")) {
        SPMD_ASSIGN_OR_RETURN(const int64_t part, ahead.Integer("the part of an axis"));
        absl::StrAppend(&list, ":", part);
      }
      cursor = ahead;
    } while (ahead.Consume(","));
    if (list.empty()) return AxisList();
    absl::StatusOr<AxisList> axes = grid.ParseAxes(list);
    return axes.ok() ? axes : cursor.Locate(axes.status());
  }

  int32_t Source(std::string source) {
    const auto [it, inserted] = sources_.try_emplace(source, 0);
    if (inserted) it->second = graph_.AddSource(std::move(source));
    return it->second;
  }

  absl::Status Outputs(Cursor& cursor) {
    if (cursor.AtEnd()) return absl::OkStatus();
    do {
      Output output{};
      SPMD_ASSIGN_OR_RETURN(output.value, names_.Read(cursor));
      if (cursor.Consume("->")) {
        SPMD_ASSIGN_OR_RETURN(output.becomes, names_.Read(cursor));
      }
      output.may_stay_unreduced = cursor.ConsumeWord("unreduced");
      graph_.AddOutput(output);
    } while (cursor.Consume(","));
    return cursor.ExpectEnd();
  }

  std::vector<Line> lines_;
  State state_ = State::kMeshes;
  Graph graph_;
  NameTable names_;
  absl::flat_hash_map<std::string, int32_t> sources_;
};

}  // namespace

absl::StatusOr<Graph> Graph::Parse(absl::string_view text) { return Parser(text).Parse(); }

}  // namespace spmd::ir
