// SPDX-License-Identifier: Apache-2.0
// Registers users' rules.
#include <algorithm>
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

// What makes a call of the op fail while it runs.
const char* RuleFails(const std::string& op) {
  switch (rules::FactsOf(op).fails) {
    case rules::Failure::kNever:
      return "never";
    case rules::Failure::kOnIntegers:
      return "on integers";
    case rules::Failure::kOnIndices:
      return "on indices";
    case rules::Failure::kOnValues:
      break;
  }
  return "on values";
}

// Ops that are always rewritten before their rules are asked for factors.
std::vector<std::string> RewrittenOps() {
  std::vector<std::string> ops = rules::AllOps();
  const auto is_asked = [](const std::string& op) { return !rules::Find(op)->decompose_always; };
  ops.erase(std::remove_if(ops.begin(), ops.end(), is_asked), ops.end());
  return ops;
}

}  // namespace

void init_rules(py::module& m) {
  m.def("register_rule", &RegisterRule, py::arg("op"), py::arg("text"), py::arg("kinds"),
        py::arg("each"), py::arg("jointly"), py::arg("local"));
  m.def("rule_ops", &rules::AllOps);
  m.def("rule_fails", &RuleFails, py::arg("op"));
  m.def("rewritten_ops", &RewrittenOps);
}

}  // namespace spmd::python
