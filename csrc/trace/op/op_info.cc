// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/op_info.h"

#include <deque>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "csrc/rules/registry.h"
#include "csrc/trace/op/op_traits.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

ArgKind KindOf(const c10::Argument& arg) {
  c10::TypePtr type = arg.type();
  if (type->kind() == c10::TypeKind::OptionalType) {
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgKind::kTensor;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::OptionalType) {
        element = element->castRaw<c10::OptionalType>()->getElementType();
      }
      return element->kind() == c10::TypeKind::TensorType ? ArgKind::kTensorList : ArgKind::kOther;
    }
    case c10::TypeKind::GeneratorType:
      return ArgKind::kGenerator;
    default:
      return IsDroppedArgument(arg.name()) ? ArgKind::kDropped : ArgKind::kOther;
  }
}

bool IsTensorType(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  if (type->kind() == c10::TypeKind::OptionalType) {
    return IsTensorType(type->castRaw<c10::OptionalType>()->getElementType());
  }
  if (type->kind() == c10::TypeKind::ListType) {
    return IsTensorType(type->castRaw<c10::ListType>()->getElementType());
  }
  return false;
}

bool IsDTypeType(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    return IsDTypeType(type->castRaw<c10::OptionalType>()->getElementType());
  }
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

struct Table {
  std::deque<OpInfo> infos;
  absl::flat_hash_map<std::string, OpInfo*> by_name;
  // The overloads of each base name, in dispatcher order.
  absl::flat_hash_map<std::string, std::vector<c10::OperatorName>> overloads;
};

Table& TheTable() {
  static auto* table = [] {
    auto* t = new Table;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      t->overloads[name.name].push_back(name);
    }
    for (auto& [base, names] : t->overloads) {
      std::sort(names.begin(), names.end(),
                [](const auto& a, const auto& b) { return a.overload_name < b.overload_name; });
    }
    return t;
  }();
  return *table;
}

std::string FullName(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name);
}

// True if `candidate` takes every argument of `op` that is not one of its results, and needs no
// others.
bool TakesSameArguments(const OpInfo& op, const OpInfo& candidate) {
  const auto& have = op.handle.schema().arguments();
  const auto& want = candidate.handle.schema().arguments();
  for (size_t i = 0; i < have.size(); ++i) {
    if (op.is_out && op.args[i].written) continue;
    const int k = candidate.FindArg(have[i].name());
    if (k < 0 || candidate.args[k].kind != op.args[i].kind) return false;
    if (op.args[i].kind == ArgKind::kOther && *want[k].type() != *have[i].type()) return false;
  }
  for (size_t k = 0; k < want.size(); ++k) {
    if (op.FindArg(want[k].name()) < 0 && !want[k].default_value().has_value() &&
        want[k].type()->kind() != c10::TypeKind::OptionalType) {
      return false;
    }
  }
  return true;
}

}  // namespace

OpInfo::OpInfo(c10::OperatorHandle h, int64_t n)
    : handle(std::move(h)), number(n), name(FullName(handle.operator_name())) {
  const c10::FunctionSchema& schema = handle.schema();
  ir_name = name;
  if (IsCopyOfView(handle.operator_name().name)) {
    constexpr size_t kSuffix = std::string_view("_copy").size();
    ir_name.erase(handle.operator_name().name.size() - kSuffix, kSuffix);
  }
  const rules::Rule* rule = rules::Find(ir_name);
  elementwise = rule != nullptr && rule->elementwise;
  for (const c10::Argument& a : schema.arguments()) {
    ArgInfo info;
    info.name = a.name();
    info.kind = KindOf(a);
    info.written = a.alias_info() != nullptr && a.alias_info()->isWrite();
    if (info.kind == ArgKind::kOther) info.number = NumberArgumentOf(schema, a);
    info.is_dtype = IsDTypeType(a.real_type());
    if (info.written) {
      written.push_back(static_cast<int>(args.size()));
      is_out |= a.is_out();
    }
    args.push_back(std::move(info));
  }
  for (const c10::Argument& r : schema.returns()) {
    int alias = -1;
    if (r.alias_info() != nullptr) {
      if (r.alias_info()->isWrite()) {
        for (int k : written) {
          if (schema.arguments()[k].alias_info()->beforeSets() == r.alias_info()->beforeSets()) {
            alias = k;
            break;
          }
        }
      } else {
        is_view = true;
      }
    }
    if (alias < 0) ++fresh_results;
    result_alias.push_back(alias);
    result_is_list.push_back(r.type()->kind() == c10::TypeKind::ListType);
    if (!IsTensorType(r.type())) only_tensors_result = false;
  }
  const std::string& base = handle.operator_name().name;
  is_foreach = IsForeach(base);
  copies_tensor = IsCopyOfTensor(name);
  casts = IsCast(name);
  start = StartArgumentOf(name);
  if (FindArg("enter") >= 0) border = Border::kEnters;
  if (FindArg("leave") >= 0) border = Border::kLeaves;
  must_run_on_host = (handle.hasTag(at::Tag::dynamic_output_shape) && !IsDynamicByMaskOnly(base)) ||
                     handle.hasTag(at::Tag::data_dependent_output) ||
                     handle.hasTag(at::Tag::nondeterministic_seeded) || IsHostOnly(base);
}

int OpInfo::FindArg(const std::string& n) const {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].name == n) return static_cast<int>(i);
  }
  return -1;
}

const OpInfo* OpInfo::functional() const {
  if (written.empty()) return this;
  if (functional_state_ == 1) return functional_;
  functional_state_ = 1;
  std::string base = handle.operator_name().name;
  const std::string& overload = handle.operator_name().overload_name;
  const size_t begin = base.rfind(':') + 1, size = base.size() - begin;
  const bool dunder = size > 5 && base[begin] == '_' && base[begin + 1] == '_' &&
                      base[base.size() - 2] == '_' && base.back() == '_';
  if (!is_out && dunder && base[begin + 2] == 'i') {
    base.erase(begin + 2, 1);  // __ilshift__ → __lshift__
  } else if (!is_out && !base.empty() && base.back() == '_') {
    base.pop_back();
  }
  const size_t wanted = (is_out ? 0 : static_cast<size_t>(fresh_results)) + written.size();
  const OpInfo* best = nullptr;
  const auto try_base = [&](const std::string& b) {
    const auto it = TheTable().overloads.find(b);
    if (it == TheTable().overloads.end()) return;
    for (const c10::OperatorName& candidate_name : it->second) {
      const OpInfo* candidate = FindOp(FullName(candidate_name));
      if (candidate == nullptr || !candidate->written.empty() || candidate->is_view) continue;
      if (candidate->result_alias.size() != wanted) continue;
      if (!TakesSameArguments(*this, *candidate)) continue;
      if (best == nullptr || candidate_name.overload_name == overload) best = candidate;
    }
  };
  try_base(base);
  if (best == nullptr) try_base(base + "_functional");
  functional_ = best;
  return best;
}

const OpInfo* OpInfo::WithScalar(int arg) const {
  for (const auto& [a, op] : scalar_variants_) {
    if (a == arg) return op;
  }
  const OpInfo* found = nullptr;
  const auto it = TheTable().overloads.find(handle.operator_name().name);
  if (it != TheTable().overloads.end()) {
    for (const c10::OperatorName& name : it->second) {
      const OpInfo* c = FindOp(FullName(name));
      if (c == nullptr || !c->written.empty() || c->args.size() != args.size()) continue;
      bool same = true;
      for (size_t i = 0; i < args.size() && same; ++i) {
        same = c->args[i].kind == (static_cast<int>(i) == arg ? ArgKind::kOther : args[i].kind);
        if (static_cast<int>(i) == arg) {
          same =
              same && c->handle.schema().arguments()[i].type()->kind() == c10::TypeKind::NumberType;
        } else {
          same = same && c->args[i].name == args[i].name;
        }
      }
      if (same) {
        found = c;
        break;
      }
    }
  }
  scalar_variants_.emplace_back(arg, found);
  return found;
}

OpInfo& MutableOpInfo(const c10::OperatorHandle& handle) {
  Table& table = TheTable();
  const std::string name = FullName(handle.operator_name());
  OpInfo*& slot = table.by_name[name];
  if (slot == nullptr) {
    // Keys of tapes are compared between processes, which may meet ops in other orders.
    const auto number = static_cast<int64_t>(std::hash<std::string>()(name) >> 8);
    table.infos.emplace_back(handle, number);
    slot = &table.infos.back();
  }
  return *slot;
}

const OpInfo& OpInfoFor(const c10::OperatorHandle& handle) { return MutableOpInfo(handle); }

const OpInfo* FindOp(const std::string& name) {
  Table& table = TheTable();
  if (const auto it = table.by_name.find(name); it != table.by_name.end()) return it->second;
  const size_t colons = name.find("::");
  const size_t dot = name.find('.', colons == std::string::npos ? 0 : colons);
  const c10::OperatorName key(name.substr(0, dot),
                              dot == std::string::npos ? "" : name.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema(key);
  return handle.has_value() ? &MutableOpInfo(*handle) : nullptr;
}

const OpInfo& GetOp(const std::string& name) {
  const OpInfo* op = FindOp(name);
  SPMD_CHECK(op != nullptr, "no operator ", name);
  return *op;
}

}  // namespace spmd::trace
