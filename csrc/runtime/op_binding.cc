// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/op_binding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "csrc/rules/registry.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/util/status.h"

namespace spmd::runtime {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

std::optional<c10::OperatorHandle> Find(absl::string_view name, absl::string_view overload) {
  return c10::Dispatcher::singleton().findSchema({std::string(name), std::string(overload)});
}

std::pair<absl::string_view, absl::string_view> SplitOverload(absl::string_view op) {
  const size_t scope = op.find("::");
  const size_t dot = op.find('.', scope == absl::string_view::npos ? 0 : scope);
  if (dot == absl::string_view::npos) return {op, ""};
  return {op.substr(0, dot), op.substr(dot + 1)};
}

// The argument into which an in-place op writes this result, or -1.
int WrittenAs(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* const alias = schema.returns()[result].alias_info();
  if (alias == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const other = schema.arguments()[i].alias_info();
    if (other == nullptr || !other->isWrite()) continue;
    if (other->beforeSets() == alias->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

// Finds the in-place form of an op, "add_.Tensor" for "add.Tensor", with the same arguments; spmd's
// form is preferred to aten's. overwritten[k] becomes the argument that holds result k, and
// overwritten[0] must be 0.
std::optional<c10::OperatorHandle> FindInPlace(absl::string_view op,
                                               const c10::FunctionSchema& schema,
                                               std::vector<int>& overwritten) {
  const auto [name, overload] = SplitOverload(op);
  std::optional<c10::OperatorHandle> found;
  absl::string_view own = name;
  if (absl::ConsumePrefix(&own, "aten::")) found = Find(absl::StrCat("spmd::", own, "_"), overload);
  if (!found.has_value()) found = Find(absl::StrCat(name, "_"), overload);
  if (!found.has_value()) return std::nullopt;
  const c10::FunctionSchema& other = found->schema();
  if (other.arguments().size() != schema.arguments().size() || other.returns().empty() ||
      other.returns().size() != schema.returns().size()) {
    return std::nullopt;
  }
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    if (*other.arguments()[i].type() != *schema.arguments()[i].type()) return std::nullopt;
  }
  std::vector<int> written;
  for (size_t k = 0; k < other.returns().size(); ++k) written.push_back(WrittenAs(other, k));
  const bool all = std::find(written.begin(), written.end(), -1) == written.end();
  if (!all || written[0] != 0) return std::nullopt;
  overwritten = std::move(written);
  return found;
}

bool IsTensor(const TypePtr& type) { return type->kind() == TypeKind::TensorType; }
TypePtr Unwrapped(const TypePtr& type) {
  return type->kind() == TypeKind::OptionalType
             ? type->expectRef<c10::OptionalType>().getElementType()
             : type;
}
bool IsTensorList(const TypePtr& type) {
  return type->kind() == TypeKind::ListType &&
         IsTensor(Unwrapped(type->expectRef<c10::ListType>().getElementType()));
}

// Converts an attribute to an IValue of `type`; nullopt if it does not fit.
class AttributeConverter {
 public:
  explicit AttributeConverter(const c10::Argument& argument)
      : type_(Unwrapped(argument.type())), length_(argument.N().value_or(1)) {}

  std::optional<IValue> operator()(NoneAttr) const { return IValue(); }
  std::optional<IValue> operator()(bool value) const { return Number(value, value); }
  std::optional<IValue> operator()(int64_t value) const { return Number(value, value); }
  std::optional<IValue> operator()(double value) const {
    switch (type_->kind()) {
      case TypeKind::FloatType:
        return IValue(value);
      case TypeKind::NumberType:
        return IValue(c10::Scalar(value));
      case TypeKind::ListType:
        return (*this)(std::vector<double>(length_, value));
      default:
        return std::nullopt;
    }
  }
  std::optional<IValue> operator()(const std::complex<double>& value) const {
    if (type_->kind() != TypeKind::NumberType && type_->kind() != TypeKind::ComplexType) {
      return std::nullopt;
    }
    return IValue(c10::Scalar(c10::complex<double>(value.real(), value.imag())));
  }
  std::optional<IValue> operator()(const std::string& value) const {
    if (type_->kind() != TypeKind::StringType) return std::nullopt;
    return IValue(value);
  }
  std::optional<IValue> operator()(DType value) const {
    if (type_->kind() != TypeKind::IntType) return std::nullopt;
    return IValue(static_cast<int64_t>(ToScalarType(value)));
  }
  std::optional<IValue> operator()(const std::vector<int64_t>& values) const {
    switch (ElementKind()) {
      case TypeKind::IntType:
        return IValue(values);
      case TypeKind::FloatType:
        return IValue(std::vector<double>(values.begin(), values.end()));
      case TypeKind::NumberType:
        return Scalars(absl::MakeConstSpan(values));
      // An empty list has no element type, so the argument's type decides.
      case TypeKind::BoolType:
        return Bools(std::vector<bool>(values.begin(), values.end()));
      default:
        return std::nullopt;
    }
  }
  std::optional<IValue> operator()(const std::vector<double>& values) const {
    switch (ElementKind()) {
      case TypeKind::FloatType:
        return IValue(values);
      case TypeKind::NumberType:
        return Scalars(absl::MakeConstSpan(values));
      default:
        return std::nullopt;
    }
  }
  std::optional<IValue> operator()(const std::vector<bool>& values) const {
    if (ElementKind() == TypeKind::BoolType) return Bools(values);
    return (*this)(std::vector<int64_t>(values.begin(), values.end()));
  }
  std::optional<IValue> operator()(const Expr& value) const {
    return value.IsConst() ? (*this)(value.value()) : std::nullopt;
  }
  std::optional<IValue> operator()(const std::vector<Expr>&) const { return std::nullopt; }
  std::optional<IValue> operator()(RuntimeScalar) const { return std::nullopt; }

 private:
  template <typename T>
  std::optional<IValue> Number(T value, int64_t as_int) const {
    switch (type_->kind()) {
      case TypeKind::BoolType:
        return IValue(as_int != 0);
      case TypeKind::IntType:
        return IValue(as_int);
      case TypeKind::FloatType:
        return IValue(static_cast<double>(as_int));
      case TypeKind::NumberType:
        return IValue(c10::Scalar(value));
      case TypeKind::ListType:
        return (*this)(std::vector<int64_t>(length_, as_int));
      default:
        return std::nullopt;
    }
  }
  TypeKind ElementKind() const {
    if (type_->kind() != TypeKind::ListType) return TypeKind::AnyType;
    return Unwrapped(type_->expectRef<c10::ListType>().getElementType())->kind();
  }
  static IValue Bools(const std::vector<bool>& values) {
    c10::List<bool> list;
    for (bool value : values) list.push_back(value);
    return IValue(std::move(list));
  }
  template <typename T>
  static IValue Scalars(absl::Span<const T> values) {
    c10::List<c10::Scalar> list;
    for (T value : values) list.push_back(value);
    return IValue(std::move(list));
  }

  TypePtr type_;
  int64_t length_;
};

class Binder {
 public:
  Binder(const program::Instruction& call, OpBinding& binding) : call_(call), binding_(binding) {}

  absl::Status Run(const c10::FunctionSchema& schema) {
    binding_.constants.resize(schema.arguments().size());
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      SPMD_RETURN_IF_ERROR(BindArgument(static_cast<int>(i), schema.arguments()[i]));
    }
    if (operand_ != static_cast<int>(call_.operands.size())) {
      return Error(absl::StrCat("takes ", operand_, " tensor operands; ", call_.operands.size(),
                                " are given"));
    }
    for (const auto& [name, attr] : call_.attributes) {
      if (!schema.argumentIndexWithName(name).has_value()) {
        return Error(absl::StrCat("has no argument '", name, "' (given ", AttrToString(attr), ")"));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(call_.op, " ", what));
  }

  bool NextIsGroup() const {
    return group_ < call_.groups.size() && call_.groups[group_].begin == operand_;
  }

  absl::Status BindArgument(int i, const c10::Argument& argument) {
    const TypePtr& type = argument.type();
    const TypePtr inner = Unwrapped(type);
    const bool optional = type->kind() == TypeKind::OptionalType;
    if (IsTensor(inner)) return BindTensor(i, argument, optional);
    if (IsTensorList(inner)) return BindGroup(i, argument, inner);
    const Attr* attr = call_.attributes.Find(argument.name());
    if (inner->kind() == TypeKind::DeviceObjType) {
      binding_.devices.push_back(i);
      return absl::OkStatus();
    }
    if (attr == nullptr) {
      if (argument.default_value().has_value()) {
        binding_.constants[i] = *argument.default_value();
        return absl::OkStatus();
      }
      if (optional) return absl::OkStatus();
      return Error(absl::StrCat("needs attribute '", argument.name(), "'"));
    }
    if (const auto* scalar = std::get_if<RuntimeScalar>(attr)) {
      binding_.scalars.push_back({i, scalar->slot, inner});
      return absl::OkStatus();
    }
    if (const auto* expr = std::get_if<Expr>(attr); expr != nullptr && !expr->IsConst()) {
      binding_.expressions.push_back({i, {*expr}, inner->kind() == TypeKind::ListType});
      return absl::OkStatus();
    }
    if (const auto* list = std::get_if<std::vector<Expr>>(attr)) {
      binding_.expressions.push_back({i, *list, true});
      return absl::OkStatus();
    }
    std::optional<IValue> value = std::visit(AttributeConverter(argument), *attr);
    if (!value.has_value() || (value->isNone() && !optional)) {
      return Error(absl::StrCat("argument '", argument.name(), "' is a ", type->repr_str(), "; ",
                                AttrToString(*attr), " does not fit"));
    }
    binding_.constants[i] = *std::move(value);
    return absl::OkStatus();
  }

  absl::Status BindTensor(int i, const c10::Argument& argument, bool optional) {
    const Attr* attr = call_.attributes.Find(argument.name());
    const bool left_out = operand_ >= static_cast<int>(call_.operands.size()) || NextIsGroup();
    if ((attr != nullptr && std::holds_alternative<NoneAttr>(*attr)) || (optional && left_out)) {
      if (!optional) return Error(absl::StrCat("operand '", argument.name(), "' is required"));
      return absl::OkStatus();
    }
    if (left_out) return Error(absl::StrCat("needs a tensor for '", argument.name(), "'"));
    binding_.tensors.push_back({i, operand_++, optional});
    return absl::OkStatus();
  }

  absl::Status BindGroup(int i, const c10::Argument& argument, const TypePtr& type) {
    // An empty group may begin anywhere.
    if (!NextIsGroup()) {
      if (argument.type()->kind() == TypeKind::OptionalType) return absl::OkStatus();
      return Error(absl::StrCat("needs a list of tensors for '", argument.name(), "'"));
    }
    const ir::OperandGroup group = call_.groups[group_++];
    const bool optional_elements = !IsTensor(type->expectRef<c10::ListType>().getElementType());
    binding_.groups.push_back({i, group, optional_elements});
    operand_ += group.size;
    return absl::OkStatus();
  }

  const program::Instruction& call_;
  OpBinding& binding_;
  int operand_ = 0;
  size_t group_ = 0;
};

}  // namespace

bool IsBuiltIn(absl::string_view op) {
  return absl::StartsWith(op, "aten::") || absl::StartsWith(op, "spmd::");
}

absl::StatusOr<OpBinding> Bind(const program::Instruction& call) {
  const auto [name, overload] = SplitOverload(call.op);
  const std::optional<c10::OperatorHandle> named = Find(name, overload);
  if (!named.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("PyTorch has no operator '", call.op, "'",
                     Find(name, "").has_value() ? " (the op exists, that overload does not)" : ""));
  }
  OpBinding binding;
  binding.name = call.op;
  binding.op = named;
  binding.facts = &rules::FactsOf(call.op);
  const c10::FunctionSchema& schema = named->schema();
  SPMD_RETURN_IF_ERROR(Binder(call, binding).Run(schema));
  for (const c10::Argument& result : schema.returns()) {
    binding.is_view = binding.is_view || result.alias_info() != nullptr;
  }
  binding.may_need_python = !IsBuiltIn(call.op);
  if (!binding.is_view) {
    binding.in_place = FindInPlace(call.op, schema, binding.overwritten);
  }
  if (!binding.facts->kernel.empty()) {
    binding.op = Find(binding.facts->kernel, "");
    const bool of_kernel =
        binding.in_place.has_value() &&
        binding.in_place->schema().name() == absl::StrCat(binding.facts->kernel, "_");
    if (!of_kernel) binding.in_place.reset();
  }
  return binding;
}

IValue ScalarValue(const c10::Scalar& scalar, const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::FloatType:
      return IValue(scalar.toDouble());
    case TypeKind::IntType:
      return IValue(scalar.toLong());
    case TypeKind::BoolType:
      return IValue(scalar.toBool());
    default:
      return IValue(scalar);
  }
}

}  // namespace spmd::runtime
