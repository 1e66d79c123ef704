// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/registry.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/families.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

using Rules = absl::flat_hash_map<std::string, Rule>;

// The built-in rules. The table is immutable once built, so look-ups of built-in ops take no lock.
const Rules& BuiltIn() {
  static const Rules* const table = [] {
    auto* t = new Rules;
    for (auto family : {ElementwiseRows, MatmulRows, ReductionRows, NormalizationRows, LossRows,
                        ViewRows, IndexingRows, PartRows, LinearAlgebraRows, SamplingRows,
                        ConvolutionRows, CreationRows, OptimizerRows}) {
      for (const Row& row : family()) {
        Rule rule(row);
        SPMD_CHECK(rule.pattern != nullptr || rule.factors != nullptr, rule.op, ": ",
                   ParseEinsum(rule.einsum).status().ToString());
        std::string op = rule.op;
        t->emplace(std::move(op), std::move(rule));
      }
    }
    return t;
  }();
  return *table;
}

// The user's rules. They are never removed and live behind pointers, so that pointers returned by
// Find stay valid.
struct UserTable {
  absl::Mutex mutex;
  absl::btree_map<std::string, std::unique_ptr<const Rule>> rules ABSL_GUARDED_BY(mutex);
};
UserTable& Users() {
  static UserTable* const table = new UserTable;
  return *table;
}

std::string Key(absl::string_view op) { return std::string(op.data(), op.size()); }

}  // namespace

const Rule* Find(absl::string_view op) {
  const std::string key = Key(op);
  if (auto it = BuiltIn().find(key); it != BuiltIn().end()) return &it->second;
  UserTable& users = Users();
  const absl::ReaderMutexLock lock(&users.mutex);
  auto it = users.rules.find(key);
  return it == users.rules.end() ? nullptr : it->second.get();
}

const OpFacts& FactsOf(absl::string_view op) {
  static const OpFacts kDefaults;
  const Rule* const rule = Find(op);
  return rule == nullptr ? kDefaults : rule->facts;
}

const Rule* FindProduct(const MatrixProduct& form) {
  const Rule* found = nullptr;  // the first one by name
  for (const auto& [op, rule] : BuiltIn()) {
    if (rule.facts.product == form && (found == nullptr || op < found->op)) found = &rule;
  }
  return found;
}

absl::Status Register(Rule rule) {
  if (rule.op.empty()) return absl::InvalidArgumentError("register_rule: the op has no name");
  if (rule.pattern == nullptr && rule.factors == nullptr) {
    const absl::Status bad = ParseEinsum(rule.einsum).status();
    return absl::InvalidArgumentError(
        absl::StrCat("register_rule: the rule of '", rule.op, "' does not parse: ", bad.message()));
  }
  auto taken = [&] {
    return absl::AlreadyExistsError(absl::StrCat("register_rule: '", rule.op, "' has a rule"));
  };
  if (BuiltIn().contains(rule.op)) return taken();
  UserTable& users = Users();
  const absl::MutexLock lock(&users.mutex);
  if (users.rules.contains(rule.op)) return taken();
  std::string op = rule.op;
  users.rules.emplace(std::move(op), std::make_unique<const Rule>(std::move(rule)));
  return absl::OkStatus();
}

bool IsUsers(absl::string_view op) {
  UserTable& users = Users();
  const absl::ReaderMutexLock lock(&users.mutex);
  return users.rules.contains(Key(op));
}

std::vector<std::string> AllOps() {
  std::vector<std::string> ops;
  for (const auto& [op, rule] : BuiltIn()) ops.push_back(op);
  {
    UserTable& users = Users();
    const absl::ReaderMutexLock lock(&users.mutex);
    for (const auto& [op, rule] : users.rules) ops.push_back(op);
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

}  // namespace spmd::rules
