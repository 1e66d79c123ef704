// SPDX-License-Identifier: Apache-2.0
// Random graphs with manual regions: what their programs compute is what each device computes on
// its own values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "csrc/ir/verifier.h"
#include "csrc/partition/compile.h"
#include "csrc/reference/interpreter.h"
#include "csrc/reference/program_interpreter.h"

namespace spmd::partition {
namespace {

struct Axis {
  char name;
  int64_t size;
};

// Writes a graph line by line.
class RandomRegions {
 public:
  explicit RandomRegions(int seed) : rng_(static_cast<uint32_t>(seed)) {}

  std::string Make() {
    static const std::vector<std::vector<Axis>> grids = {
        {{'x', 2}, {'y', 2}}, {{'x', 4}}, {{'x', 2}, {'y', 3}}, {{'x', 2}, {'y', 2}, {'z', 2}}};
    axes_ = grids[Any(grids.size())];
    std::string text = "mesh @m [";
    for (const Axis& a : axes_)
      absl::StrAppend(&text, std::string(1, a.name), "=", a.size,
                      a.name == axes_.back().name ? "" : ", ");
    absl::StrAppend(&text, "]\ngraph {\n");
    for (size_t i = 0, n = 1 + Any(3); i < n; ++i) Input(text);
    for (size_t i = 0, n = 3 + Any(9); i < n; ++i) Node(text);
    std::vector<std::string> outputs;
    for (size_t i = values_.size(); i-- > 0 && outputs.size() < 3;) {
      if (values_[i].made) outputs.push_back("%" + values_[i].name);
    }
    return absl::StrCat(text, "  return ", absl::StrJoin(outputs, ", "), "\n}\n");
  }

 private:
  struct Value {
    std::string name;
    std::vector<int64_t> dims;
    std::string manual;  // names of axes
    bool made = false;
  };

  size_t Any(size_t n) { return rng_() % n; }
  bool Maybe() { return Any(2) == 0; }
  static std::string Type(const std::vector<int64_t>& dims) {
    return absl::StrCat("f64[", absl::StrJoin(dims, ","), "]");
  }
  static bool Has(const std::string& axes, char axis) { return axes.find(axis) != axes.npos; }

  // A sharding that deals axes to dimensions and to `rest`.
  static std::string Text(const std::vector<std::string>& dims, const std::string& rest,
                          const char* what) {
    const auto list = [](const std::string& axes) {
      std::vector<std::string> names;
      for (const char a : axes) names.emplace_back(1, a);
      return absl::StrJoin(names, ",");
    };
    std::vector<std::string> parts;
    for (const std::string& d : dims) parts.push_back(absl::StrCat("{", list(d), "}"));
    std::string text = absl::StrJoin(parts, ",");
    if (rest.empty()) return text;
    return absl::StrCat(text, text.empty() ? "" : " ", what, "{", list(rest), "}");
  }

  void Input(std::string& text) {
    static const int64_t sizes[] = {1, 4, 6, 12, 24};
    Value v{absl::StrCat("x", values_.size()), {}, "", false};
    for (size_t d = 0, n = Any(3); d < n; ++d) v.dims.push_back(sizes[Any(5)]);
    absl::StrAppend(&text, "  %", v.name, ": ", Type(v.dims));
    if (Maybe()) {
      std::vector<std::string> cut(v.dims.size());
      for (const Axis& a : axes_) {
        if (!cut.empty() && Maybe()) cut[Any(cut.size())] += a.name;
      }
      absl::StrAppend(&text, " @m ", Text(cut, "", ""));
    }
    absl::StrAppend(&text, "\n");
    values_.push_back(v);
  }

  void Emit(std::string& text, std::vector<int64_t> dims, std::string manual,
            const std::string& call) {
    std::sort(manual.begin(), manual.end());
    Value v{absl::StrCat("v", values_.size()), std::move(dims), std::move(manual), true};
    absl::StrAppend(&text, "  %", v.name, ": ", Type(v.dims), " = ", call, "\n");
    values_.push_back(std::move(v));
  }

  void Node(std::string& text) {
    const Value v = values_[Any(values_.size())];
    switch (Any(8)) {
      case 0:
      case 1:
        return Border(text, v, /*enters=*/true);
      case 2:
      case 3:
        return Border(text, v, /*enters=*/false);
      case 4:
        return Emit(text, v.dims, v.manual, absl::StrCat("aten::sin(%", v.name, ")"));
      case 5: {
        if (v.dims.empty()) return;
        const size_t d = Any(v.dims.size());
        std::vector<int64_t> dims = v.dims;
        dims.erase(dims.begin() + static_cast<int64_t>(d));
        return Emit(text, dims, v.manual,
                    absl::StrCat("aten::sum.dim_IntList(%", v.name, ", dim=[", d,
                                 "], keepdim=false, dtype=none)"));
      }
      case 6: {
        for (const Value& w : values_) {
          if (w.dims != v.dims || Maybe()) continue;
          return Emit(text, v.dims, Union(v.manual, w.manual),
                      absl::StrCat("aten::mul.Tensor(%", v.name, ", %", w.name, ")"));
        }
        return;
      }
      default:
        for (const Value& w : values_) {
          if (v.dims.size() != 2 || w.dims.size() != 2 || v.dims[1] != w.dims[0]) continue;
          return Emit(text, {v.dims[0], w.dims[1]}, Union(v.manual, w.manual),
                      absl::StrCat("aten::mm(%", v.name, ", %", w.name, ")"));
        }
    }
  }

  static std::string Union(std::string a, const std::string& b) {
    for (const char axis : b) {
      if (!Has(a, axis)) a += axis;
    }
    return a;
  }

  void Border(std::string& text, const Value& v, bool enters) {
    std::vector<std::string> cut(v.dims.size());
    std::vector<int64_t> dims = v.dims;
    std::string rest, manual = v.manual;
    bool any = false;
    for (const Axis& a : axes_) {
      if (Has(v.manual, a.name) == enters || Any(3) == 0) continue;
      any = true;
      const size_t d = Any(dims.size() + 1);
      if (enters ? d < dims.size() && dims[d] % a.size == 0 : d < dims.size()) {
        cut[d] += a.name;
        dims[d] = enters ? dims[d] / a.size : dims[d] * a.size;
      } else {
        rest += a.name;
      }
      if (enters) {
        manual += a.name;
      } else {
        manual.erase(manual.find(a.name), 1);
      }
    }
    if (!any) return;
    Emit(text, dims, manual,
         absl::StrCat(enters ? "spmd::to_local(%" : "spmd::to_global(%", v.name, ", size=[",
                      absl::StrJoin(dims, ","), "], ", enters ? "enter=\"" : "leave=\"",
                      Text(cut, rest, enters ? "manual" : "unreduced(sum)"), "\", mesh=\"m\")"));
  }

  std::mt19937 rng_;
  std::vector<Axis> axes_;
  std::vector<Value> values_;
};

bool Close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-9 * (1 + std::abs(a));
}

// "" if all is well. `kind`: of the partial sums of the program that is played; another kind than
// "sum" is a fault.
std::string Difference(const std::string& text, const std::string& kind = "sum") {
  const auto graph = ir::Graph::Parse(text);
  if (!graph.ok()) return graph.status().ToString();
  if (const absl::Status sound = ir::Verify(*graph); !sound.ok()) return sound.ToString();
  std::vector<reference::Literal> inputs;
  for (ir::ValueId id : graph->inputs()) {
    inputs.push_back(reference::SampleLiteral(graph->type(id), inputs.size()));
  }
  const auto expected = reference::Interpret(*graph, inputs);
  if (!expected.ok()) return "the graph: " + expected.status().ToString();
  CompileOptions options;
  options.verify = true;
  const auto compiled = Compile(*graph, options);
  if (!compiled.ok()) return "compiling: " + compiled.status().ToString();
  const std::string played = absl::StrReplaceAll(
      compiled->program.ToString(), {{"unreduced(sum)", absl::StrCat("unreduced(", kind, ")")}});
  const auto program = program::Program::Parse(played);
  if (!program.ok()) return program.status().ToString();
  const auto actual = reference::Interpret(*program, inputs);
  if (!actual.ok()) return actual.status().ToString() + "\n" + played;
  for (size_t k = 0; k < expected->size(); ++k) {
    if (!((*expected)[k].type == (*actual)[k].type)) {
      return absl::StrCat("output ", k, " has two types");
    }
    for (size_t i = 0; i < (*expected)[k].data.size(); ++i) {
      const double a = (*expected)[k].data[i], b = (*actual)[k].data[i];
      if (Close(a, b)) continue;
      return absl::StrCat("output ", k, " at ", i, ": the graph gives ", a, ", the program ", b,
                          "\n", played);
    }
  }
  return "";
}

TEST(Regions, ProgramsComputeWhatEachDeviceComputes) {
  int outputs = 0;
  for (int seed = 0; seed < 600; ++seed) {
    const std::string text = RandomRegions(seed).Make();
    if (text.find("return %") == text.npos) continue;
    ++outputs;
    const std::string difference = Difference(text);
    ASSERT_EQ(difference, "") << "seed " << seed << "\n" << text;
  }
  EXPECT_GT(outputs, 500);
}

TEST(Regions, AMaximumInPlaceOfASumIsFound) {
  int found = 0;
  for (int seed = 0; seed < 300; ++seed) {
    const std::string text = RandomRegions(seed).Make();
    if (text.find("return %") == text.npos) continue;
    found += Difference(text, "max").empty() ? 0 : 1;
  }
  EXPECT_GT(found, 50);
}

TEST(Regions, TextIsReadBack) {
  for (int seed = 0; seed < 200; ++seed) {
    const auto graph = ir::Graph::Parse(RandomRegions(seed).Make());
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto compiled = Compile(*graph, {});
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const auto again = ir::Graph::Parse(compiled->graph.ToString());
    ASSERT_TRUE(again.ok()) << again.status() << compiled->graph.ToString();
    EXPECT_EQ(again->ToString(), compiled->graph.ToString());
    EXPECT_TRUE(again->ComputeFingerprint() == compiled->graph.ComputeFingerprint());
    for (ir::ValueId v = 0; v < again->num_values(); ++v) {
      EXPECT_EQ(again->value(v).manual, compiled->graph.value(v).manual);
    }
    const auto program = program::Program::Parse(compiled->program.ToString());
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(program->ToString(), compiled->program.ToString());
  }
}

}  // namespace
}  // namespace spmd::partition
