// SPDX-License-Identifier: Apache-2.0
// Program::Parse, the inverse of printer.cc. It reports text that cannot be read; broken invariants
// are left to the verifier, so that tests can write a broken program.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/ir/lines.h"
#include "csrc/ir/syntax.h"
#include "csrc/program/program.h"
#include "csrc/util/status.h"

namespace spmd::program {
namespace {

absl::StatusOr<int> ParseIndex(Scanner& in, absl::string_view what) {
  const size_t begin = in.position();
  SPMD_ASSIGN_OR_RETURN(const int64_t value, in.Integer(what));
  if (value >= 0 && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  in.Seek(begin);
  return in.Error(what);
}

absl::StatusOr<AxisList> ParseAxisList(Scanner& in, const Grid& grid) {
  AxisList axes;
  do {
    SPMD_RETURN_IF_ERROR(grid.ParseAxis(in, axes));
  } while (in.Consume(","));
  return axes;
}

// Parses "(2: start(r0,0)-1..start(r0,0)+size(r0,0)+1 of 32 chunk 9)", which follows the word
// `window`.
absl::StatusOr<WindowDim> ParseWindow(Scanner& in) {
  WindowDim window;
  SPMD_RETURN_IF_ERROR(in.Expect("("));
  SPMD_ASSIGN_OR_RETURN(window.dim, ParseIndex(in, "a dimension"));
  SPMD_RETURN_IF_ERROR(in.Expect(":"));
  SPMD_ASSIGN_OR_RETURN(window.begin, Expr::Parse(in));
  SPMD_RETURN_IF_ERROR(in.Expect(".."));
  SPMD_ASSIGN_OR_RETURN(window.end, Expr::Parse(in));
  if (!in.ConsumeWord("of")) return in.Error("'of' and the number of indices");
  SPMD_ASSIGN_OR_RETURN(window.extent, in.Integer("a number of indices"));
  if (in.ConsumeWord("chunk")) {
    SPMD_ASSIGN_OR_RETURN(window.chunk, in.Integer("the size of a chunk"));
  }
  if (in.ConsumeWord("order")) {
    SPMD_RETURN_IF_ERROR(in.Expect("("));
    do {
      Interval& part = window.order.emplace_back();
      SPMD_ASSIGN_OR_RETURN(part.begin, in.Integer("an index"));
      SPMD_RETURN_IF_ERROR(in.Expect(".."));
      SPMD_ASSIGN_OR_RETURN(part.end, in.Integer("an index"));
    } while (in.Consume(","));
    SPMD_RETURN_IF_ERROR(in.Expect(")"));
  }
  SPMD_RETURN_IF_ERROR(in.Expect(")"));
  return window;
}

class Parser {
 public:
  explicit Parser(absl::string_view text) : lines_(ir::SplitLines(text)) {}

  absl::StatusOr<Program> Parse() {
    for (const ir::Line& line : lines_) {
      line_ = line.number;
      Scanner in(line.text);
      absl::Status status = Statement(in);
      if (status.ok()) status = in.ExpectEnd();
      if (!status.ok()) return ir::AtLine(line_, status);
    }
    if (state_ == State::kDone) return std::move(program_);
    const char* missing = state_ == State::kMeshes ? "program {"
                          : state_ == State::kBody ? "return"
                                                   : "}";
    return ir::AtLine(line_, absl::InvalidArgumentError(
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
        return in.Error("nothing after the '}' of the program");
    }
    return absl::OkStatus();
  }

  absl::Status Header(Scanner& in) {
    if (in.ConsumeWord("program")) {
      state_ = State::kBody;
      return in.Expect("{");
    }
    if (!in.ConsumeWord("mesh")) return in.Error("'mesh' or 'program {'");
    SPMD_ASSIGN_OR_RETURN(ir::NamedGrid named, ir::ParseMesh(in));
    auto& names = program_.grid_names;
    if (std::find(names.begin(), names.end(), named.name) != names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh '@", named.name, "' is already defined"));
    }
    names.push_back(std::move(named.name));
    program_.grids.push_back(std::move(named.grid));
    return absl::OkStatus();
  }

  absl::Status Body(Scanner& in) {
    if (in.Peek() == '%' || in.Peek() == '=') return Definitions(in);
    if (in.ConsumeWord("free")) return Free(in);
    if (in.ConsumeWord("scalar")) {
      SPMD_ASSIGN_OR_RETURN(const ir::ScalarKind kind,
                            ir::ParseScalar(in, static_cast<int>(program_.scalars.size())));
      program_.scalars.push_back(kind);
      return absl::OkStatus();
    }
    if (in.ConsumeWord("return")) {
      state_ = State::kReturned;
      return Outputs(in);
    }
    return in.Error("a value like '%x: f32[2] @m {}', 'free', 'scalar' or 'return'");
  }

  absl::Status Free(Scanner& in) {
    Instruction instruction;
    instruction.code = OpCode::kFree;
    do {
      SPMD_ASSIGN_OR_RETURN(const ValueId value, names_.Parse(in));
      instruction.operands.push_back(value);
    } while (in.Consume(","));
    program_.instructions.push_back(std::move(instruction));
    return absl::OkStatus();
  }

  // Parses an input, or the results of an instruction with the instruction.
  absl::Status Definitions(Scanner& in) {
    std::vector<Value> values;
    if (in.Peek() != '=') {
      do {
        SPMD_ASSIGN_OR_RETURN(Value value, Define(in));
        values.push_back(std::move(value));
      } while (in.Consume(","));
    }
    Instruction instruction;
    const bool is_input = in.Peek() != '=';
    if (!is_input) {
      SPMD_ASSIGN_OR_RETURN(instruction, ParseInstruction(in, values));
    } else if (values.size() != 1) {
      return in.Error("'=' after several results");
    }
    for (Value& value : values) {
      const std::string name = value.name;
      SPMD_RETURN_IF_ERROR(names_.Define(name, static_cast<int>(program_.values.size()), line_));
      instruction.results.push_back(program_.AddValue(std::move(value)));
    }
    if (is_input) {
      program_.inputs.push_back({instruction.results[0], in.ConsumeWord("donated")});
    } else {
      program_.instructions.push_back(std::move(instruction));
    }
    return absl::OkStatus();
  }

  // Parses "%x: f32[32,128] @m {data},{} window(…)".
  absl::StatusOr<Value> Define(Scanner& in) {
    Value value;
    SPMD_ASSIGN_OR_RETURN(const absl::string_view name, ir::ParseValueName(in));
    value.name = std::string(name);
    SPMD_RETURN_IF_ERROR(in.Expect(":"));
    SPMD_ASSIGN_OR_RETURN(value.type, TensorType::Parse(in));
    SPMD_ASSIGN_OR_RETURN(value.grid, ir::ParseMeshRef(in, program_.grid_names));
    SPMD_ASSIGN_OR_RETURN(value.sharding, Sharding::Parse(in, *program_.grids[value.grid]));
    while (in.ConsumeWord("window")) {
      SPMD_ASSIGN_OR_RETURN(WindowDim window, ParseWindow(in));
      value.windows.push_back(std::move(window));
    }
    return value;
  }

  absl::StatusOr<OpCode> ParseOpCode(Scanner& in) {
    for (int c = 0; c < static_cast<int>(OpCode::kFree); ++c) {
      if (in.ConsumeWord(OpCodeName(static_cast<OpCode>(c)))) return static_cast<OpCode>(c);
    }
    return in.Error(
        "'call' or a move: slice, all_gather, all_to_all, permute, exchange, all_reduce, "
        "reduce_scatter, term");
  }

  absl::StatusOr<Instruction> ParseInstruction(Scanner& in, const std::vector<Value>& results) {
    SPMD_RETURN_IF_ERROR(in.Expect("="));
    Instruction instruction;
    SPMD_ASSIGN_OR_RETURN(instruction.code, ParseOpCode(in));
    if (instruction.code == OpCode::kCall) {
      SPMD_ASSIGN_OR_RETURN(const absl::string_view op, ir::ParseOpName(in));
      instruction.op = std::string(op);
    }
    SPMD_ASSIGN_OR_RETURN(ir::Arguments arguments, ir::ParseArguments(in, names_));
    instruction.operands = std::move(arguments.operands);
    instruction.groups = std::move(arguments.groups);
    instruction.attributes = std::move(arguments.attributes);
    if (program_.grids.empty()) return in.Error("a mesh before the first instruction, not this");
    const Grid& grid = *program_.grids[results.empty() ? 0 : results[0].grid];
    SPMD_RETURN_IF_ERROR(Clauses(in, grid, instruction));
    return instruction;
  }

  absl::Status Clauses(Scanner& in, const Grid& grid, Instruction& instruction) {
    if (in.Consume("{")) {
      SPMD_ASSIGN_OR_RETURN(instruction.axes, ParseAxisList(in, grid));
      SPMD_RETURN_IF_ERROR(in.Expect("}"));
    }
    if (in.ConsumeWord("dim")) {
      SPMD_ASSIGN_OR_RETURN(instruction.dim, Parenthesised(in, "a dimension"));
    }
    if (in.ConsumeWord("to")) {
      SPMD_ASSIGN_OR_RETURN(instruction.to_dim, Parenthesised(in, "a dimension"));
    }
    if (in.ConsumeWord("fill")) {
      SPMD_ASSIGN_OR_RETURN(instruction.fill, Fill(in));
    }
    while (in.ConsumeWord("added_once")) {
      AddedOnce once;
      SPMD_RETURN_IF_ERROR(in.Expect("("));
      SPMD_ASSIGN_OR_RETURN(once.operand, ParseIndex(in, "the number of an operand"));
      SPMD_RETURN_IF_ERROR(in.Expect(":"));
      SPMD_ASSIGN_OR_RETURN(once.axes, ParseAxisList(in, grid));
      SPMD_RETURN_IF_ERROR(in.Expect(")"));
      instruction.added_once.push_back(std::move(once));
    }
    if (in.ConsumeWord("updates")) {
      SPMD_ASSIGN_OR_RETURN(instruction.updates, Parenthesised(in, "the number of an operand"));
    }
    if (in.ConsumeWord("task")) {
      SPMD_ASSIGN_OR_RETURN(instruction.task, ir::ParseInParentheses(in));
    }
    if (in.ConsumeWord("at")) {
      SPMD_ASSIGN_OR_RETURN(const std::string line, in.Quoted("a line of the user's in quotes"));
      instruction.source = program_.AddSource(line);
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<int> Parenthesised(Scanner& in, absl::string_view what) {
    SPMD_RETURN_IF_ERROR(in.Expect("("));
    SPMD_ASSIGN_OR_RETURN(const int value, ParseIndex(in, what));
    SPMD_RETURN_IF_ERROR(in.Expect(")"));
    return value;
  }

  static absl::StatusOr<double> Fill(Scanner& in) {
    SPMD_RETURN_IF_ERROR(in.Expect("("));
    const size_t begin = in.position();
    SPMD_ASSIGN_OR_RETURN(const Attr attr, ParseAttr(in));
    SPMD_RETURN_IF_ERROR(in.Expect(")"));
    if (const auto* value = std::get_if<double>(&attr)) return *value;
    if (const auto* value = std::get_if<int64_t>(&attr)) return static_cast<double>(*value);
    in.Seek(begin);
    return in.Error("a number");
  }

  absl::Status Outputs(Scanner& in) {
    if (in.AtEnd()) return absl::OkStatus();
    do {
      Output output{};
      SPMD_ASSIGN_OR_RETURN(output.value, names_.Parse(in));
      if (in.Consume("->")) {
        const size_t begin = in.position();
        SPMD_ASSIGN_OR_RETURN(const ValueId becomes, names_.Parse(in));
        const auto& inputs = program_.inputs;
        const auto it = std::find_if(inputs.begin(), inputs.end(),
                                     [&](const Input& i) { return i.value == becomes; });
        if (it == inputs.end()) {
          in.Seek(begin);
          return in.Error("an input after '->'");
        }
        output.becomes = static_cast<int>(it - inputs.begin());
      }
      program_.outputs.push_back(output);
    } while (in.Consume(","));
    return absl::OkStatus();
  }

  const std::vector<ir::Line> lines_;
  int line_ = 1;
  State state_ = State::kMeshes;
  Program program_;
  ir::NameTable names_;
};

}  // namespace

absl::StatusOr<Program> Program::Parse(absl::string_view text) { return Parser(text).Parse(); }

}  // namespace spmd::program
