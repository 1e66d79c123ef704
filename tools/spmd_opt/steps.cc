// SPDX-License-Identifier: Apache-2.0
#include "tools/spmd_opt/steps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "csrc/ir/graph.h"
#include "csrc/ir/lines.h"
#include "csrc/ir/verifier.h"
#include "csrc/partition/compile.h"
#include "csrc/program/analysis.h"
#include "csrc/program/one_place/coalesce.h"
#include "csrc/program/one_place/fuse_sums.h"
#include "csrc/program/program.h"
#include "csrc/reference/interpreter.h"
#include "csrc/reference/program_interpreter.h"
#include "csrc/rules/graph_verifier.h"
#include "csrc/util/did_you_mean.h"
#include "csrc/util/status.h"

namespace spmd::opt {
namespace {

using program::Program;
using Module = std::variant<ir::Graph, Program>;

// A text is what its first statement beyond the meshes says.
bool SaysProgram(absl::string_view text) {
  for (const ir::Line& line : ir::SplitLines(text)) {
    Scanner in(line.text);
    if (!in.ConsumeWord("mesh")) return in.ConsumeWord("program");
  }
  return false;
}

absl::StatusOr<Module> ParseModule(absl::string_view text) {
  if (!SaysProgram(text)) {
    SPMD_ASSIGN_OR_RETURN(ir::Graph graph, ir::Graph::Parse(text));
    SPMD_RETURN_IF_ERROR(ir::Verify(graph));
    SPMD_RETURN_IF_ERROR(rules::Verify(graph));
    return graph;
  }
  SPMD_ASSIGN_OR_RETURN(Program program, Program::Parse(text));
  SPMD_RETURN_IF_ERROR(program::Verify(program));
  return program;
}

std::string TextOf(const Module& module) {
  return std::visit([](const auto& m) { return m.ToString(); }, module);
}

absl::StatusOr<ir::Graph> ParseGraph(absl::string_view text) {
  SPMD_ASSIGN_OR_RETURN(Module module, ParseModule(text));
  if (auto* graph = std::get_if<ir::Graph>(&module)) return std::move(*graph);
  return absl::InvalidArgumentError("this step needs a graph, got a program");
}

// A program, or what a graph compiles to.
absl::StatusOr<Program> ParseProgram(absl::string_view text) {
  SPMD_ASSIGN_OR_RETURN(Module module, ParseModule(text));
  if (auto* program = std::get_if<Program>(&module)) return std::move(*program);
  partition::CompileOptions options;
  options.verify = true;
  SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled,
                        partition::Compile(std::get<ir::Graph>(module), options));
  return std::move(compiled.program);
}

absl::StatusOr<std::string> Print(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const Module module, ParseModule(text));
  return TextOf(module);
}

absl::StatusOr<std::string> PrintFingerprint(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const Module module, ParseModule(text));
  return std::visit([](const auto& m) { return m.ComputeFingerprint().ToString() + "\n"; }, module);
}

absl::StatusOr<std::vector<reference::Literal>> SampleInputs(const ir::Graph& graph) {
  SPMD_RETURN_IF_ERROR(reference::CheckSize(graph));
  std::vector<reference::Literal> inputs;
  for (ir::ValueId id : graph.inputs()) {
    inputs.push_back(reference::SampleLiteral(graph.type(id), inputs.size()));
  }
  return inputs;
}

// Run-time scalars are 0.5, 1.5, …: integers 0, 1, ….
std::vector<double> SampleScalars(absl::Span<const ir::ScalarKind> kinds) {
  std::vector<double> scalars;
  for (size_t slot = 0; slot < kinds.size(); ++slot) scalars.push_back(slot + 0.5);
  return scalars;
}

// "1, 0.5", or "1+2i, 0.5-1i" of complex numbers.
std::string ElementsOf(const reference::Literal& literal) {
  std::string out;
  for (size_t i = 0; i < literal.data.size(); ++i) {
    absl::StrAppendFormat(&out, "%s%.6g", i == 0 ? "" : ", ", literal.data[i]);
    if (!literal.imaginary.empty()) absl::StrAppendFormat(&out, "%+.6gi", literal.imaginary[i]);
  }
  return out;
}

absl::StatusOr<std::string> Interpret(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const ir::Graph graph, ParseGraph(text));
  SPMD_ASSIGN_OR_RETURN(const std::vector<reference::Literal> inputs, SampleInputs(graph));
  SPMD_ASSIGN_OR_RETURN(const std::vector<reference::Literal> outputs,
                        reference::Interpret(graph, inputs, SampleScalars(graph.scalars())));
  std::string out;
  for (size_t k = 0; k < outputs.size(); ++k) {
    absl::StrAppend(&out, "%", graph.value(graph.outputs()[k].value).name, ": ",
                    outputs[k].type.ToString(), " = [", ElementsOf(outputs[k]), "]\n");
  }
  return out;
}

absl::StatusOr<std::string> Traffic(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const Program program, ParseProgram(text));
  std::string out;
  for (const program::Traffic& row : program::CollectiveTraffic(program)) {
    const program::Instruction& instruction = program.instructions[row.instruction];
    const Grid& grid = *program.grids[program.values[instruction.results[0]].grid];
    absl::StrAppend(&out, program::OpCodeName(row.code), " {", grid.AxesToString(row.axes),
                    "}: ", row.count, " of ", row.payload_bytes, " bytes, ", row.wire_bytes,
                    " on the wire", row.source.empty() ? "" : absl::StrCat(" at ", row.source),
                    "\n");
  }
  return out;
}

absl::StatusOr<std::string> Memory(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const Program program, ParseProgram(text));
  const program::MemoryReport report = program::PeakMemory(program);
  std::string out =
      absl::StrCat("peak ", report.peak_bytes, " bytes at instruction ", report.instruction,
                   "; inputs ", report.input_bytes, ", outputs ", report.output_bytes, "\n");
  for (const program::LiveValue& live : report.live) {
    absl::StrAppend(&out, "  %", program.values[live.value].name, ": ", live.bytes, "\n");
  }
  return out;
}

absl::StatusOr<partition::Compiled> CompileText(absl::string_view text) {
  SPMD_ASSIGN_OR_RETURN(const ir::Graph graph, ParseGraph(text));
  partition::CompileOptions options;
  options.verify = true;
  return partition::Compile(graph, options);
}

absl::StatusOr<std::string> Warnings(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const partition::Compiled compiled, CompileText(text));
  std::string out;
  for (const partition::Warning& warning : compiled.warnings) {
    absl::StrAppend(&out, warning.text, "\n");
  }
  return out;
}

bool Close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-4 * (1 + std::abs(a));
}

// "equal", or the first element that differs.
std::string Compared(const reference::Literal& expected, const reference::Literal& actual) {
  const auto places = [](const std::vector<double>& a, const std::vector<double>& b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end(), Close);
  };
  for (const auto& [a, b, part] :
       {std::tuple(&expected.data, &actual.data, ""),
        std::tuple(&expected.imaginary, &actual.imaginary, "the imaginary part of ")}) {
    const auto at = places(*a, *b);
    if (at.first == a->end() || at.second == b->end()) continue;
    return absl::StrCat(part, "element ", at.first - a->begin(), " is ", *at.second, ", unsharded ",
                        *at.first);
  }
  return "equal";
}

// Where the unsharded graph and its program, played on every device, differ.
absl::StatusOr<std::string> Check(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const ir::Graph graph, ParseGraph(text));
  SPMD_ASSIGN_OR_RETURN(const Program program, ParseProgram(text));
  SPMD_ASSIGN_OR_RETURN(const std::vector<reference::Literal> inputs, SampleInputs(graph));
  const std::vector<double> scalars = SampleScalars(graph.scalars());
  SPMD_ASSIGN_OR_RETURN(const auto expected, reference::Interpret(graph, inputs, scalars));
  SPMD_ASSIGN_OR_RETURN(const auto actual, reference::Interpret(program, inputs, scalars));
  std::string out;
  for (size_t k = 0; k < expected.size(); ++k) {
    absl::StrAppend(&out, "%", graph.value(graph.outputs()[k].value).name, ": ",
                    Compared(expected[k], actual[k]), "\n");
  }
  return out;
}

// `axes`: the axes along which devices stay apart, as a list of names; none: all run as one.
absl::StatusOr<std::string> CoalesceText(absl::string_view text, absl::string_view axes) {
  SPMD_ASSIGN_OR_RETURN(const Program program, ParseProgram(text));
  AxisMask kept = 0;
  for (const absl::string_view name : absl::StrSplit(axes, '+', absl::SkipEmpty())) {
    for (const AxisId axis : program.grids[0]->SubAxesOf(name)) kept |= MaskOf(axis);
  }
  const Program coalesced =
      kept == 0 ? program::Coalesce(program) : program::CoalesceKeeping(program, kept);
  SPMD_RETURN_IF_ERROR(program::Verify(coalesced));
  return coalesced.ToString();
}

absl::StatusOr<std::string> FuseSumsText(absl::string_view text, absl::string_view) {
  SPMD_ASSIGN_OR_RETURN(const Program program, ParseProgram(text));
  const std::optional<Program> fused = program::FuseSums(program);
  if (!fused) return program.ToString();
  SPMD_RETURN_IF_ERROR(program::Verify(*fused));
  return fused->ToString();
}

absl::StatusOr<std::string> Explain(absl::string_view text, absl::string_view name) {
  SPMD_ASSIGN_OR_RETURN(const partition::Compiled compiled, CompileText(text));
  for (ir::ValueId id = 0; id < compiled.graph.num_values(); ++id) {
    if (name != compiled.graph.value(id).name) continue;
    std::string chain = compiled.reasons.Explain(compiled.graph, id);
    if (!absl::EndsWith(chain, "\n")) chain += "\n";
    return chain;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no value '%", name, "' after simplification; give one as explain=<name>"));
}

struct Step {
  const char* name;
  const char* what;
  absl::StatusOr<std::string> (*run)(absl::string_view text, absl::string_view argument);
};
constexpr Step kSteps[] = {
    {"print", "parses, verifies and prints in normal form", Print},
    {"fingerprint", "the 128 bits that stand for the text", PrintFingerprint},
    {"interpret", "a graph's outputs on made-up inputs", Interpret},
    {"check", "a graph's outputs against those of its program on every device", Check},
    {"traffic", "one line per collective of a program", Traffic},
    {"memory", "a program's peak bytes per device, and what is alive then", Memory},
    {"warnings", "what compiling a graph warns of", Warnings},
    {"coalesce", "a program whose devices run as one; coalesce=data+model: but along these axes",
     CoalesceText},
    {"fuse_sums", "a program whose products are added to partial sums while they are computed",
     FuseSumsText},
    {"explain", "explain=x: why value %x of a graph is cut as it is", Explain},
};

absl::StatusOr<std::string> RunStep(absl::string_view text, absl::string_view step) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(step, absl::MaxSplits('=', 1));
  std::vector<std::string> names;
  for (const Step& row : kSteps) {
    if (parts.first == row.name) return row.run(text, parts.second);
    names.push_back(row.name);
  }
  for (const std::string& pass : partition::PassNames()) {
    if (parts.first == pass) {
      SPMD_ASSIGN_OR_RETURN(const ir::Graph graph, ParseGraph(text));
      return partition::TextAfter(graph, pass);
    }
    names.push_back(pass);
  }
  const auto near = DidYouMean(parts.first, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no step '", parts.first, "'",
      near.has_value() ? absl::StrCat("; did you mean '", *near, "'?")
                       : absl::StrCat("; the steps are ", absl::StrJoin(names, ", "))));
}

}  // namespace

std::string DescribeSteps() {
  std::string out;
  for (const Step& step : kSteps) absl::StrAppendFormat(&out, "  %-12s %s\n", step.name, step.what);
  for (const std::string& pass : partition::PassNames()) {
    absl::StrAppendFormat(&out, "  %-12s the text after this pass of the pipeline\n", pass);
  }
  return out;
}

absl::StatusOr<std::string> RunSteps(absl::string_view text, absl::Span<const std::string> steps) {
  std::string current(text);
  for (const std::string& step : steps) {
    SPMD_ASSIGN_OR_RETURN(current, RunStep(current, step));
  }
  return current;
}

std::vector<std::string> SplitSteps(absl::string_view list) {
  std::vector<std::string> steps;
  for (absl::string_view step : absl::StrSplit(list, ',')) {
    step = absl::StripAsciiWhitespace(step);
    if (!step.empty()) steps.emplace_back(step);
  }
  return steps;
}

}  // namespace spmd::opt
