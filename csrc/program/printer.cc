// SPDX-License-Identifier: Apache-2.0
// Program::ToString; the form is described in program.h. Error messages print programs that break
// invariants, so a missing value or grid is written with a '?': "%?7", "@?3".
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/ir/syntax.h"
#include "csrc/program/program.h"

namespace spmd::program {
namespace {

class Printer {
 public:
  explicit Printer(const Program& program) : program_(program) {}

  std::string Print() {
    for (size_t g = 0; g < program_.grids.size(); ++g) {
      absl::StrAppend(&text_, ir::MeshToString(GridName(static_cast<int>(g)), *program_.grids[g]),
                      "\n");
    }
    absl::StrAppend(&text_, "program {\n");
    for (size_t slot = 0; slot < program_.scalars.size(); ++slot) {
      Line(ir::ScalarToString(static_cast<int>(slot), program_.scalars[slot]));
    }
    for (const Input& input : program_.inputs) {
      Line(absl::StrCat(Defined(input.value), input.donated ? " donated" : ""));
    }
    for (const Instruction& instruction : program_.instructions) Line(Statement(instruction));
    Line(Outputs());
    return text_ + "}\n";
  }

 private:
  void Line(absl::string_view line) { absl::StrAppend(&text_, "  ", line, "\n"); }

  bool IsValue(ValueId id) const {
    return id >= 0 && id < static_cast<ValueId>(program_.values.size());
  }
  std::string Name(ValueId id) const {
    return IsValue(id) ? absl::StrCat("%", program_.values[id].name) : absl::StrCat("%?", id);
  }

  std::string GridName(int g) const {
    const bool exists = g >= 0 && g < static_cast<int>(program_.grid_names.size());
    return exists ? program_.grid_names[g] : absl::StrCat("?", g);
  }
  // A missing grid is replaced by one without axes.
  const Grid& GridAt(int g) const {
    const bool exists = g >= 0 && g < static_cast<int>(program_.grids.size());
    return exists ? *program_.grids[g] : *none_;
  }

  std::string Defined(ValueId id) const {
    if (!IsValue(id)) return Name(id);
    const Value& value = program_.values[id];
    std::string text =
        absl::StrCat(Name(id), ": ", value.type.ToString(), " @", GridName(value.grid));
    const std::string sharding = value.sharding.ToString(GridAt(value.grid));
    if (!sharding.empty()) absl::StrAppend(&text, " ", sharding);
    for (const WindowDim& window : value.windows) {
      absl::StrAppend(&text, " window(", window.dim, ": ", window.begin.ToString(), "..",
                      window.end.ToString(), " of ", window.extent);
      if (window.chunk != 0) absl::StrAppend(&text, " chunk ", window.chunk);
      if (!window.order.empty()) {
        absl::StrAppend(&text, " order(",
                        absl::StrJoin(window.order, ",",
                                      [](std::string* out, const Interval& part) {
                                        absl::StrAppend(out, part.begin, "..", part.end);
                                      }),
                        ")");
      }
      absl::StrAppend(&text, ")");
    }
    return text;
  }

  std::string Statement(const Instruction& i) const {
    if (i.code == OpCode::kFree) {
      return absl::StrCat("free ",
                          absl::StrJoin(i.operands, ", ", [this](std::string* out, ValueId id) {
                            absl::StrAppend(out, Name(id));
                          }));
    }
    std::string line = absl::StrJoin(i.results, ", ", [this](std::string* out, ValueId id) {
      absl::StrAppend(out, Defined(id));
    });
    absl::StrAppend(&line, line.empty() ? "= " : " = ", OpCodeName(i.code));
    if (i.code == OpCode::kCall) absl::StrAppend(&line, " ", i.op);
    absl::StrAppend(&line, ir::ArgumentsToString(i.operands, i.groups, i.attributes,
                                                 [this](ValueId id) { return Name(id); }));
    AppendClauses(i, line);
    return line;
  }

  void AppendClauses(const Instruction& i, std::string& line) const {
    const bool is_made = !i.results.empty() && IsValue(i.results[0]);
    const Grid& grid = GridAt(is_made ? program_.values[i.results[0]].grid : 0);
    if (!i.axes.empty()) absl::StrAppend(&line, " {", grid.AxesToString(i.axes), "}");
    if (i.dim != -1) absl::StrAppend(&line, " dim(", i.dim, ")");
    if (i.to_dim != -1) absl::StrAppend(&line, " to(", i.to_dim, ")");
    if (i.code == OpCode::kExchange && AttrToString(i.fill) != "0.0") {
      absl::StrAppend(&line, " fill(", AttrToString(i.fill), ")");
    }
    for (const AddedOnce& once : i.added_once) {
      absl::StrAppend(&line, " added_once(", once.operand, ": ", grid.AxesToString(once.axes), ")");
    }
    if (i.updates != -1) absl::StrAppend(&line, " updates(", i.updates, ")");
    if (i.task != 0) absl::StrAppend(&line, " task(", i.task, ")");
    if (i.source != -1) absl::StrAppend(&line, " at ", Quote(SourceAt(i.source)));
  }

  std::string SourceAt(int32_t source) const {
    const bool exists = source >= 0 && source < static_cast<int32_t>(program_.sources.size());
    return exists ? program_.sources[source] : absl::StrCat("?", source);
  }
  std::string InputAt(int k) const {
    const bool exists = k >= 0 && k < static_cast<int>(program_.inputs.size());
    return exists ? Name(program_.inputs[k].value) : absl::StrCat("%?", k);
  }

  std::string Outputs() const {
    const std::string outputs =
        absl::StrJoin(program_.outputs, ", ", [this](std::string* out, const Output& output) {
          absl::StrAppend(out, Name(output.value));
          if (output.becomes != -1) absl::StrAppend(out, " -> ", InputAt(output.becomes));
        });
    return outputs.empty() ? "return" : absl::StrCat("return ", outputs);
  }

  const Program& program_;
  const GridPtr none_ = Grid::SingleDevice();
  std::string text_;
};

}  // namespace

std::string Program::ToString() const { return Printer(*this).Print(); }

}  // namespace spmd::program
