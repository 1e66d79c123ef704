// SPDX-License-Identifier: Apache-2.0
// Graph::Parse, the inverse of printer.cc. It reports text that cannot be read; broken invariants
// are left to the verifier, so that tests can write a broken graph.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "csrc/ir/graph.h"
#include "csrc/ir/lines.h"
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
      line_ = line.number;
      Scanner in(line.text);
      absl::Status status = Statement(in);
      if (status.ok()) status = in.ExpectEnd();
      if (!status.ok()) return AtLine(line_, status);
    }
    if (state_ == State::kDone) return std::move(graph_);
    const char* missing = state_ == State::kMeshes ? "graph {"
                          : state_ == State::kBody ? "return"
                                                   : "}";
    return AtLine(line_, absl::InvalidArgumentError(
                             absl::StrCat("expected '", missing, "', but the text ends")));
  }

 private:
  enum class State { kMeshes, kBody, kReturned, kDone };

  absl::Status Statement(Scanner& in) {
    switch (state_) {
      case State::kMeshes:
        return Header(in);
      case State::kBody:
        return Body(in);
      case State::kReturned:
        state_ = State::kDone;
        return in.Expect("}");
      case State::kDone:
        return in.Error("nothing after the '}' of the graph");
    }
    return absl::OkStatus();
  }

  absl::Status Header(Scanner& in) {
    if (in.ConsumeWord("graph")) {
      state_ = State::kBody;
      return in.Expect("{");
    }
    if (!in.ConsumeWord("mesh")) return in.Error("'mesh' or 'graph {'");
    SPMD_ASSIGN_OR_RETURN(NamedGrid named, ParseMesh(in));
    if (std::find(grid_names_.begin(), grid_names_.end(), named.name) != grid_names_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh '@", named.name, "' is already defined"));
    }
    grid_names_.push_back(named.name);
    graph_.AddGrid(std::move(named.grid), std::move(named.name));
    return absl::OkStatus();
  }

  absl::Status Body(Scanner& in) {
    if (in.Peek() == '%' || in.Peek() == '=') return Definitions(in);
    if (in.ConsumeWord("scalar")) {
      SPMD_ASSIGN_OR_RETURN(const ScalarKind kind,
                            ParseScalar(in, static_cast<int>(graph_.scalars().size())));
      graph_.AddScalar(kind);
      return absl::OkStatus();
    }
    if (in.ConsumeWord("return")) {
      state_ = State::kReturned;
      return Outputs(in);
    }
    return in.Error("a value like '%x: f32[2]', 'scalar' or 'return'");
  }

  // Parses an input, or the results of a node with the node.
  absl::Status Definitions(Scanner& in) {
    std::vector<Definition> definitions;
    if (in.Peek() != '=') {
      do {
        SPMD_ASSIGN_OR_RETURN(Definition definition, Define(in));
        definitions.push_back(std::move(definition));
      } while (in.Consume(","));
    }
    const ValueId first = graph_.num_values();
    if (in.Consume("=")) {
      SPMD_RETURN_IF_ERROR(ParseNode(in, definitions));
    } else {
      if (definitions.size() != 1) return in.Error("'=' after several results");
      graph_.AddInput(definitions[0].type);
    }
    for (size_t k = 0; k < definitions.size(); ++k) {
      SPMD_RETURN_IF_ERROR(names_.Define(definitions[k].name, first + k, line_));
    }
    // The last value is named first, so that the numbers that the values got when they were created
    // become free again.
    for (size_t k = definitions.size(); k-- > 0;) {
      graph_.SetName(first + k, std::move(definitions[k].name));
      if (definitions[k].annotation) graph_.Annotate(first + k, *definitions[k].annotation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Definition> Define(Scanner& in) {
    Definition definition;
    SPMD_ASSIGN_OR_RETURN(const absl::string_view name, ParseValueName(in));
    definition.name = std::string(name);
    SPMD_RETURN_IF_ERROR(in.Expect(":"));
    SPMD_ASSIGN_OR_RETURN(definition.type, TensorType::Parse(in));
    if (in.Peek() != '@') return definition;
    Annotation annotation;
    SPMD_ASSIGN_OR_RETURN(annotation.grid, ParseMeshRef(in, grid_names_));
    // The sign of the hold follows the mesh's name directly; in "@m = op()" the '=' belongs to the
    // node.
    const absl::string_view rest = in.rest();
    if (absl::StartsWith(rest, "~")) {
      in.Consume("~");
      annotation.hold = Hold::kSettled;
    } else if (absl::StartsWith(rest, "=")) {
      in.Consume("=");
      annotation.hold = Hold::kDerived;
    } else if (absl::StartsWith(rest, "!")) {
      in.Consume("!");
      annotation.of_parameter = true;
    }
    SPMD_ASSIGN_OR_RETURN(annotation.sharding, Sharding::Parse(in, graph_.grid(annotation.grid)));
    definition.annotation = std::move(annotation);
    return definition;
  }

  absl::Status ParseNode(Scanner& in, const std::vector<Definition>& definitions) {
    Graph::NodeSpec spec;
    SPMD_ASSIGN_OR_RETURN(const absl::string_view op, ParseOpName(in));
    spec.op = std::string(op);
    SPMD_ASSIGN_OR_RETURN(Arguments arguments, ParseArguments(in, names_));
    spec.operands = std::move(arguments.operands);
    spec.groups = std::move(arguments.groups);
    spec.attributes = std::move(arguments.attributes);
    if (in.ConsumeWord("updates")) {
      SPMD_ASSIGN_OR_RETURN(const int64_t operand, ParseInParentheses(in));
      if (operand < 0 || operand > std::numeric_limits<int>::max()) {
        return absl::InvalidArgumentError(absl::StrCat("updates(", operand, ") names no operand"));
      }
      spec.updates = static_cast<int>(operand);
    }
    if (in.ConsumeWord("task")) {
      SPMD_ASSIGN_OR_RETURN(spec.task, ParseInParentheses(in));
    }
    std::optional<std::vector<FactorCut>> cut;
    int cut_grid = 0;
    if (in.ConsumeWord("cut")) {
      SPMD_ASSIGN_OR_RETURN(cut, Cut(in, cut_grid));
    }
    if (in.ConsumeWord("at")) {
      SPMD_ASSIGN_OR_RETURN(std::string source, in.Quoted("a line of the user's in quotes"));
      spec.source = Source(std::move(source));
    }
    std::vector<TensorType> types;
    for (const Definition& definition : definitions) types.push_back(definition.type);
    const NodeId node = graph_.AddNode(std::move(spec), types);
    if (cut.has_value()) graph_.SetCut(node, cut_grid, *std::move(cut));
    return absl::OkStatus();
  }

  // Parses "@r {0: data,model:1, 2: x chunk=6}".
  absl::StatusOr<std::vector<FactorCut>> Cut(Scanner& in, int& grid) {
    if (in.Peek() == '@') {
      SPMD_ASSIGN_OR_RETURN(grid, ParseMeshRef(in, grid_names_));
    }
    if (grid_names_.empty()) return in.Error("no cut in a graph without a mesh");
    std::vector<FactorCut> cuts;
    SPMD_RETURN_IF_ERROR(in.Expect("{"));
    if (in.Consume("}")) return cuts;
    do {
      SPMD_ASSIGN_OR_RETURN(const int64_t factor, in.Integer("the number of a factor"));
      if (factor < std::numeric_limits<int16_t>::min() ||
          factor > std::numeric_limits<int16_t>::max()) {
        return absl::InvalidArgumentError(absl::StrCat("there is no factor ", factor));
      }
      SPMD_RETURN_IF_ERROR(in.Expect(":"));
      FactorCut& cut = cuts.emplace_back();
      cut.factor = static_cast<int>(factor);
      SPMD_ASSIGN_OR_RETURN(cut.axes, CutAxes(in, graph_.grid(grid)));
      if (in.Consume("chunk=")) {
        SPMD_ASSIGN_OR_RETURN(cut.chunk, in.Integer("the size of a chunk"));
      }
    } while (in.Consume(","));
    SPMD_RETURN_IF_ERROR(in.Expect("}"));
    return cuts;
  }

  // Parses axes up to the '}' or the next factor; factors are numbers, axes are names.
  absl::StatusOr<AxisList> CutAxes(Scanner& in, const Grid& grid) {
    AxisList axes;
    size_t end = in.position();
    while (StartsAxis(in.Peek()) && !in.Looking("chunk=")) {
      SPMD_RETURN_IF_ERROR(grid.ParseAxis(in, axes));
      end = in.position();
      if (!in.Consume(",")) break;
    }
    in.Seek(end);
    return axes;
  }

  static bool StartsAxis(char c) { return IsIdentifier(absl::string_view(&c, 1)); }

  int32_t Source(std::string source) {
    const auto [it, inserted] = sources_.try_emplace(source, 0);
    if (inserted) it->second = graph_.AddSource(std::move(source));
    return it->second;
  }

  absl::Status Outputs(Scanner& in) {
    if (in.AtEnd()) return absl::OkStatus();
    do {
      Output output{};
      SPMD_ASSIGN_OR_RETURN(output.value, names_.Parse(in));
      if (in.Consume("->")) {
        SPMD_ASSIGN_OR_RETURN(output.becomes, names_.Parse(in));
      }
      output.may_stay_unreduced = in.ConsumeWord("unreduced");
      output.held = in.ConsumeWord("held");
      graph_.AddOutput(output);
    } while (in.Consume(","));
    return absl::OkStatus();
  }

  std::vector<Line> lines_;
  int line_ = 1;
  State state_ = State::kMeshes;
  Graph graph_;
  std::vector<std::string> grid_names_;
  NameTable names_;
  absl::flat_hash_map<std::string, int32_t> sources_;
};

}  // namespace

absl::StatusOr<Graph> Graph::Parse(absl::string_view text) { return Parser(text).Parse(); }

}  // namespace spmd::ir
