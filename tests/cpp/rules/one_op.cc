// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/rules/one_op.h"

#include <cctype>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/rules/builder.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// Reads types ("f32[2,3]") off the text; each becomes `name` followed by a number.
class Naming {
 public:
  explicit Naming(std::string prefix) : prefix_(std::move(prefix)) {}

  std::string Replace(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const size_t length = TypeLength(text, i);
      if (length == 0) {
        out += text[i++];
        continue;
      }
      absl::StrAppend(&out, "%", prefix_, types_.size());
      types_.push_back(text.substr(i, length));
      i += length;
    }
    return out;
  }
  const std::vector<std::string>& types() const { return types_; }

 private:
  // Of the type that starts at i, or 0: a word that is a type's name, then its sizes in brackets.
  static size_t TypeLength(const std::string& text, size_t i) {
    if (i > 0 && (std::isalnum(text[i - 1]) || text[i - 1] == '=')) return 0;
    size_t end = i;
    while (end < text.size() && std::isalnum(text[end])) ++end;
    if (end == i || end == text.size() || text[end] != '[') return 0;
    end = text.find(']', end);
    return end == std::string::npos ? 0 : end + 1 - i;
  }

  std::string prefix_;
  std::vector<std::string> types_;
};

}  // namespace

OneOp::OneOp(const std::string& line) {
  const size_t equals = line.find(" = ");
  SPMD_CHECK(equals != std::string::npos, line, " has no result");
  Naming operands("x"), results("r");
  const std::string call = operands.Replace(line.substr(equals + 3));
  results.Replace(line.substr(0, equals));
  std::string text = "graph {\n", outputs;
  for (size_t i = 0; i < operands.types().size(); ++i) {
    absl::StrAppend(&text, "  %x", i, ": ", operands.types()[i], "\n");
  }
  for (size_t i = 0; i < results.types().size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "  " : ", ", "%r", i, ": ", results.types()[i]);
    absl::StrAppend(&outputs, i == 0 ? "" : ", ", "%r", i);
  }
  absl::StrAppend(&text, " = ", call, "\n  return ", outputs, "\n}\n");
  absl::StatusOr<ir::Graph> graph = ir::Graph::Parse(text);
  SPMD_CHECK(graph.ok(), text, graph.status().ToString());
  graph_ = *std::move(graph);
}

const Rule& OneOp::rule() const {
  const Rule* rule = Find(node().op);
  SPMD_CHECK(rule != nullptr, node().op, " has no rule");
  return *rule;
}

std::string OneOp::FactorText() const {
  const absl::StatusOr<OpFactors> factors = FactorsOf(rule(), call());
  return factors.ok() ? factors->ToString() : std::string(factors.status().message());
}

std::string OneOp::TypeText() const {
  OpCall operands = call();
  operands.results.clear();
  const absl::StatusOr<std::vector<TensorType>> types = InferTypes(rule(), operands);
  if (!types.ok()) return std::string(types.status().message());
  return absl::StrJoin(*types, ", ", [](std::string* out, const TensorType& type) {
    absl::StrAppend(out, type.ToString());
  });
}

ir::Graph OneOp::Decomposed() const {
  ir::Graph out;
  std::vector<ir::ValueId> operands;
  for (ir::ValueId v : node().operands) {
    operands.push_back(v == ir::kNoValue ? v : out.AddInput(graph_.type(v), graph_.value(v).name));
  }
  SPMD_CHECK(rule().decompose != nullptr, node().op, " has no decomposition");
  Builder builder(&out, node().task, node().source);
  const absl::StatusOr<std::vector<ir::ValueId>> values =
      rule().decompose(builder, graph_, node(), operands);
  SPMD_CHECK(values.ok(), values.status().ToString());
  for (ir::ValueId v : *values) {
    if (v != ir::kNoValue) out.AddOutput({v});
  }
  return out;
}

}  // namespace spmd::rules
