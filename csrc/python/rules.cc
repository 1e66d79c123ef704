// SPDX-License-Identifier: Apache-2.0
// Users' rules: registering them, and what their checking needs to know of them.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "csrc/python/errors.h"
#include "csrc/python/init.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/user_rule.h"
#include "csrc/trace/op_info.h"
#include "csrc/trace/session.h"

namespace spmd::python {
namespace {

using Texts = std::vector<std::pair<std::string, std::string>>;
// Dims of each tensor; nullopt: an absent operand.
using TensorDims = std::vector<std::optional<std::vector<int64_t>>>;
// (first index, size) of each dimension of a tile of each tensor.
using Tiles = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

absl::Status CheckSchema(const rules::Rule& rule) {
  const trace::OpInfo* op = trace::FindOp(rule.op);
  if (op == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("register_rule: there is no op '", rule.op,
                                                   "'; define it first, and name its overload as "
                                                   "the dispatcher does: \"mylib::op.overload\""));
  }
  size_t tensors = 0;
  for (const trace::ArgInfo& arg : op->args) {
    if (arg.kind == trace::ArgKind::kTensorList) return absl::OkStatus();  // any number
    tensors += arg.kind == trace::ArgKind::kTensor ? 1 : 0;
  }
  const auto differ = [&](const char* what, size_t has, size_t says) {
    return absl::InvalidArgumentError(absl::StrCat("register_rule: '", rule.op, "' has ", has, " ",
                                                   what, ", the text \"", rule.einsum, "\" ",
                                                   says));
  };
  if (rule.pattern->operands.size() != tensors) {
    return differ("tensor arguments", tensors, rule.pattern->operands.size());
  }
  const size_t results = op->result_alias.size();
  if (rule.pattern->results.size() != results) {
    return differ("results", results, rule.pattern->results.size());
  }
  return absl::OkStatus();
}

void RegisterRule(const std::string& op, const std::string& text, const Texts& kinds,
                  const std::vector<int>& each, const std::vector<int>& jointly,
                  const Texts& local) {
  rules::Rule rule = ValueOrThrow(rules::FromUser({op, text, kinds, each, jointly, local}));
  ThrowIfError(CheckSchema(rule));
  ThrowIfError(trace::Session::Get().RegisterRule(std::move(rule)));
}

// A call of which only the shapes are known.
struct Shapes {
  Shapes(const rules::Rule& rule, const TensorDims& operand_dims, const TensorDims& result_dims) {
    for (const auto& dims : operand_dims) {
      types.push_back({DType::kF32, dims ? Dims(dims->begin(), dims->end()) : Dims()});
    }
    call.op = rule.op;
    for (size_t k = 0; k < types.size(); ++k) {
      call.operands.push_back(operand_dims[k] ? &types[k] : nullptr);
    }
    for (const auto& dims : result_dims) {
      call.results.push_back({DType::kF32, Dims(dims->begin(), dims->end())});
    }
    call.attributes = &attributes;
  }
  Shapes(const Shapes&) = delete;
  Shapes& operator=(const Shapes&) = delete;

  std::vector<TensorType> types;
  Attributes attributes;
  rules::OpCall call;
};

const rules::Rule& RuleOf(const std::string& op) {
  const rules::Rule* rule = rules::Find(op);
  if (rule == nullptr || rule->pattern == nullptr) {
    ThrowIfError(absl::InvalidArgumentError(
        absl::StrCat("check_rule: '", op, "' has no rule that register_rule gave it")));
  }
  return *rule;
}

std::vector<std::vector<std::vector<int>>> Lists(const std::vector<rules::TensorFactors>& tensors) {
  std::vector<std::vector<std::vector<int>>> lists;
  for (const rules::TensorFactors& tensor : tensors) {
    lists.emplace_back();
    for (const rules::DimFactors& dim : tensor) lists.back().emplace_back(dim.begin(), dim.end());
  }
  return lists;
}

// factors: (size, whole, kind) each; operands and results: factors of each dimension.
py::dict CallFactors(const std::string& op, const TensorDims& operands, const TensorDims& results) {
  const rules::Rule& rule = RuleOf(op);
  const Shapes shapes(rule, operands, results);
  const rules::OpFactors found = ValueOrThrow(rules::FactorsOf(rule, shapes.call));
  py::list factors;
  for (const rules::Factor& f : found.factors) {
    const absl::string_view kind = ReduceKindName(f.reduce);
    factors.append(py::make_tuple(f.size, f.whole, std::string(kind.data(), kind.size())));
  }
  py::dict out;
  out["factors"] = factors;
  out["operands"] = Lists(found.operands);
  out["results"] = Lists(found.results);
  out["same"] = found.same;
  out["added"] = rule.added;
  out["each"] = rule.each;
  out["jointly"] = rule.jointly;
  return out;
}

// The local attributes on tiles, by name: integers, or lists of integers.
py::dict LocalAttributes(const std::string& op, const Tiles& operands, const Tiles& results,
                         const TensorDims& operand_dims, const TensorDims& result_dims) {
  const auto tile = [&](TensorRef t, int d) {
    return (t.kind == TensorRef::Kind::kOperand ? operands : results).at(t.index).at(d);
  };
  Expr::Env env;
  env.start = [&](TensorRef t, int d) { return tile(t, d).first; };
  env.size = [&](TensorRef t, int d) { return tile(t, d).second; };
  env.extent = [&](TensorRef t, int d) {
    const TensorDims& dims = t.kind == TensorRef::Kind::kOperand ? operand_dims : result_dims;
    return dims.at(t.index).value().at(d);
  };
  env.coord = [](int) { return int64_t{0}; };
  py::dict out;
  for (const auto& [name, attr] : RuleOf(op).local_attributes) {
    if (const auto* e = std::get_if<Expr>(&attr)) {
      out[name.c_str()] = e->Evaluate(env);
    } else if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
      std::vector<int64_t> values;
      for (const Expr& e : *list) values.push_back(e.Evaluate(env));
      out[name.c_str()] = values;
    } else if (const auto* i = std::get_if<int64_t>(&attr)) {
      out[name.c_str()] = *i;
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr)) {
      out[name.c_str()] = *ints;
    }
  }
  return out;
}

}  // namespace

void init_rules(py::module& m) {
  m.def("register_rule", &RegisterRule, py::arg("op"), py::arg("text"), py::arg("kinds"),
        py::arg("each"), py::arg("jointly"), py::arg("local"));
  m.def("rule_ops", &rules::AllOps);
  m.def("call_factors", &CallFactors, py::arg("op"), py::arg("operands"), py::arg("results"));
  m.def("local_attributes", &LocalAttributes, py::arg("op"), py::arg("operands"),
        py::arg("results"), py::arg("operand_dims"), py::arg("result_dims"));
}

}  // namespace spmd::python
