// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/user_rule.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/row.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

class Reader {
 public:
  explicit Reader(const UserRule& user) : user_(user) {}

  absl::StatusOr<Rule> Read() {
    Rule rule = Einsum(user_.op, user_.text);
    if (rule.pattern == nullptr) return Error(ParseEinsum(user_.text).status().message());
    EinsumPattern pattern = *rule.pattern;
    for (const auto& [factor, kind] : user_.kinds) {
      SPMD_RETURN_IF_ERROR(SetKind(factor, kind, &pattern));
    }
    for (const std::vector<int>* list : {&user_.each, &user_.jointly}) {
      for (int k : *list) SPMD_RETURN_IF_ERROR(CheckOperand(k, pattern));
    }
    for (const auto& [name, text] : user_.local) {
      absl::StatusOr<Attr> attr = ParseAttr(text);
      if (!attr.ok()) {
        return Error("local attribute '", name, "' = \"", text, "\": ", attr.status().message());
      }
      SPMD_RETURN_IF_ERROR(CheckVariables(name, text, *attr, pattern));
      rule.local_attributes.emplace_back(name, *std::move(attr));
    }
    rule.pattern = std::make_shared<const EinsumPattern>(std::move(pattern));
    rule.each = user_.each;
    rule.jointly = user_.jointly;
    return rule;
  }

 private:
  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("register_rule: the rule of '", user_.op, "': ", what...));
  }

  absl::Status SetKind(const std::string& factor, const std::string& kind,
                       EinsumPattern* pattern) const {
    const auto at = std::find(pattern->names.begin(), pattern->names.end(), factor);
    if (at == pattern->names.end()) {
      return Error("kinds names '", factor, "', which the text \"", user_.text,
                   "\" does not have; its factors are ", absl::StrJoin(pattern->names, ", "));
    }
    const int name = static_cast<int>(at - pattern->names.begin());
    if (pattern->whole[name])
      return Error("'", factor, "' is in brackets, so it is never sharded and has no kind");
    const absl::StatusOr<ReduceKind> parsed = ParseReduceKind(kind);
    if (!parsed.ok()) return Error("kind of '", factor, "': ", parsed.status().message());
    const auto in_result = [&](const EinsumTensor& r) {
      return std::any_of(r.dims.begin(), r.dims.end(), [&](const EinsumDim& d) {
        return std::count(d.names.begin(), d.names.end(), name) > 0;
      });
    };
    if (std::all_of(pattern->results.begin(), pattern->results.end(), in_result)) {
      return Error("'", factor, "' is in every result: there is nothing to combine");
    }
    pattern->reduce[name] = *parsed;
    return absl::OkStatus();
  }

  absl::Status CheckOperand(int k, const EinsumPattern& pattern) const {
    const int count = static_cast<int>(pattern.operands.size());
    if (0 <= k && k < count) return absl::OkStatus();
    return Error("operand ", k, " is not one of the ", count, " of the text \"", user_.text, "\"");
  }

  absl::Status CheckVariables(const std::string& name, const std::string& text, const Attr& attr,
                              const EinsumPattern& pattern) const {
    absl::Status status;
    const auto check = [&](const Expr& v) {
      if (v.op() == Expr::Op::kCoord) {
        status = Error("local attribute '", name, "': coord() is not for rules");
        return;
      }
      const bool operand = v.tensor().kind == TensorRef::Kind::kOperand;
      const auto& tensors = operand ? pattern.operands : pattern.results;
      const int k = v.tensor().index;
      if (k >= static_cast<int>(tensors.size())) {
        status = Error("local attribute '", name, "' = \"", text, "\" refers to ",
                       operand ? "operand " : "result ", k, "; there are ", tensors.size());
      }
    };
    if (const auto* e = std::get_if<Expr>(&attr)) e->ForEachVariable(check);
    if (const auto* list = std::get_if<std::vector<Expr>>(&attr)) {
      for (const Expr& e : *list) e.ForEachVariable(check);
    }
    return status;
  }

  const UserRule& user_;
};

}  // namespace

absl::StatusOr<Rule> FromUser(const UserRule& user) { return Reader(user).Read(); }

}  // namespace spmd::rules
