// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/op/number_arguments.h"

#include <algorithm>
#include <array>
#include <compare>
#include <limits>
#include <optional>
#include <string_view>

#include "csrc/trace/op/op_traits.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

namespace {

// An argument of an op with all its overloads. A name that ends in '*' stands for all names that
// begin so.
struct Row {
  std::string_view op;
  std::string_view argument;

  friend constexpr auto operator<=>(const Row&, const Row&) = default;
};

bool Fits(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

template <size_t N>
bool ContainsArgument(const std::array<Row, N>& rows, std::string_view op,
                      std::string_view argument) {
  return std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
    return Fits(row.op, op) && Fits(row.argument, argument);
  });
}

constexpr std::array kStructural = {
    // The pixels that an output reads, and thus the halos of a sharded image.
    Row{"*", "scales*"},
};
static_assert(IsSortedAndUnique(kStructural));

// Integers that are values, and neither sizes nor choices of a function.
constexpr std::array kNumbersAmongIntegers = {
    Row{"aten::_fake_quantize*", "quant_*"},
    Row{"aten::avg_pool*", "divisor_override"},
    Row{"aten::embedding", "padding_idx"},
    Row{"aten::embedding_dense_backward", "padding_idx"},
    Row{"aten::fake_quantize*", "quant_*"},
    Row{"aten::fake_quantize*", "zero_point"},
    Row{"aten::kthvalue", "k"},
    Row{"aten::mvlgamma", "p"},
    Row{"aten::nll_loss*", "ignore_index"},
    Row{"aten::polygamma", "n"},
    Row{"aten::round", "decimals"},
    Row{"spmd::*", "counter"},
    Row{"spmd::*", "seed"},
};
static_assert(IsSortedAndUnique(kNumbersAmongIntegers));

// Factors, fill values and the other operand, for which kernels accept any number. (Scalars, not
// floats.)
constexpr std::array<std::string_view, 11> kFreeScalars = {"alpha", "beta",  "exponent", "max",
                                                           "min",   "other", "scalar",   "scalars",
                                                           "self",  "value", "weight"};
static_assert(IsSortedAndUnique(kFreeScalars));
// Scalars with these names that are refused if they are 0 or negative.
constexpr std::array kAskedAllTheSame = {
    Row{"aten::celu", "alpha"},
    Row{"aten::elu*", "alpha"},
    Row{"aten::softplus*", "beta"},
};
static_assert(IsSortedAndUnique(kAskedAllTheSame));
// Optimizers pass another learning rate, momentum or decay in every step.
constexpr std::array kFreeOps = {
    Row{"aten::_fused_adagrad", "*"}, Row{"aten::_fused_adam", "*"}, Row{"aten::_fused_adamw", "*"},
    Row{"aten::_fused_sgd", "*"},     Row{"spmd::*", "*"},
};
static_assert(IsSortedAndUnique(kFreeOps));

// The order of a norm. Some orders are functions of their own: a count, a sum, an extremum.
constexpr std::array kOrders = {
    Row{"*", "ord"},
    Row{"aten::dist", "p"},
    Row{"aten::norm", "p"},
};
static_assert(IsSortedAndUnique(kOrders));
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array kOwnFunctions = {-kInfinity, 0.0, 1.0, 2.0, kInfinity};

struct KnownRow {
  Row row;
  double value;

  friend constexpr auto operator<=>(const KnownRow&, const KnownRow&) = default;
};
constexpr std::array kKnown = {
    // At 0 there is no dropout and no decay, and no momentum to keep.
    KnownRow{{"*", "dropout_p"}, 0},
    KnownRow{{"aten::_fused_*", "dampening"}, 0},
    KnownRow{{"aten::_fused_*", "lr_decay"}, 0},
    KnownRow{{"aten::_fused_*", "momentum"}, 0},
    KnownRow{{"aten::_fused_*", "weight_decay"}, 0},
    // The default of modules: knowing it saves a multiplication per layer.
    KnownRow{{"aten::_native_batch_norm_legit*", "momentum"}, 0.1},
    // The default, which no index equals.
    KnownRow{{"aten::embedding*", "padding_idx"}, -1},
    // As above.
    KnownRow{{"aten::native_batch_norm", "momentum"}, 0.1},
    KnownRow{{"aten::nll_loss*", "ignore_index"}, -100},
    // Decompositions fold counts with the two values that occur in practice.
    KnownRow{{"aten::std*", "correction"}, 0},
    KnownRow{{"aten::std*", "correction"}, 1},
    KnownRow{{"aten::var*", "correction"}, 0},
    KnownRow{{"aten::var*", "correction"}, 1},
    KnownRow{{"spmd::full", "value"}, 0},
    KnownRow{{"spmd::full", "value"}, 1},
    // An iota that numbers the elements of a dimension is worth recognizing.
    KnownRow{{"spmd::iota", "start"}, 0},
    KnownRow{{"spmd::iota", "step"}, 1},
};
static_assert(IsSortedAndUnique(kKnown));

struct StartRow {
  std::string_view op;
  StartArgument start;
};
constexpr std::array kStarts = {
    StartRow{"aten::narrow_copy", {StartUse::kNarrow, 2}},
    StartRow{"aten::roll", {StartUse::kRoll, 1}},
    StartRow{"aten::select.int", {StartUse::kSelect, 2}},
    StartRow{"aten::select_backward", {StartUse::kSelectGradient, 3}},
    StartRow{"aten::select_copy.int", {StartUse::kSelect, 2}},
    StartRow{"aten::select_scatter", {StartUse::kSelectInto, 3}},
    StartRow{"aten::slice.Tensor", {StartUse::kSlice, 2}},
    StartRow{"aten::slice_backward", {StartUse::kSliceGradient, 3}},
    StartRow{"aten::slice_copy.Tensor", {StartUse::kSlice, 2}},
    StartRow{"aten::slice_scatter", {StartUse::kSliceInto, 3}},
    StartRow{"aten::tril", {StartUse::kLowerTriangle, 1}},
    StartRow{"aten::triu", {StartUse::kUpperTriangle, 1}},
};
static_assert(IsSortedAndUnique(kStarts, &StartRow::op));

struct Type {
  c10::TypeKind kind;
  bool is_list;
};

Type TypeOf(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  bool is_list = false;
  while (true) {
    if (type->kind() == c10::TypeKind::OptionalType) {
      type = type->castRaw<c10::OptionalType>()->getElementType();
    } else if (type->kind() == c10::TypeKind::ListType) {
      is_list = true;
      type = type->castRaw<c10::ListType>()->getElementType();
    } else {
      return {type->kind(), is_list};
    }
  }
}

NumberUse UseOf(std::string_view op, std::string_view argument, const Type& type) {
  using c10::TypeKind;
  // The elements of a foreach op have a number each; any other list is one argument.
  if (type.is_list && !IsForeach(std::string(op))) return NumberUse::kStructural;
  const bool is_number = type.kind == TypeKind::FloatType || type.kind == TypeKind::NumberType ||
                         type.kind == TypeKind::ComplexType;
  const bool is_integer = type.kind == TypeKind::IntType || type.kind == TypeKind::SymIntType;
  const bool is_listed = is_integer && ContainsArgument(kNumbersAmongIntegers, op, argument);
  if ((!is_number && !is_listed) || ContainsArgument(kStructural, op, argument)) {
    return NumberUse::kStructural;
  }
  if (ContainsArgument(kFreeOps, op, argument)) return NumberUse::kFree;
  const bool has_free_name =
      type.kind == TypeKind::NumberType && op.starts_with("aten::") &&
      std::find(kFreeScalars.begin(), kFreeScalars.end(), argument) != kFreeScalars.end();
  return has_free_name && !ContainsArgument(kAskedAllTheSame, op, argument) ? NumberUse::kFree
                                                                            : NumberUse::kAsked;
}

}  // namespace

NumberArgument NumberArgumentOf(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  const std::string& op = schema.operator_name().name;
  NumberArgument number;
  number.use = UseOf(op, argument.name(), TypeOf(argument));
  if (number.use == NumberUse::kStructural) return number;
  for (const KnownRow& known : kKnown) {
    if (Fits(known.row.op, op) && Fits(known.row.argument, argument.name())) {
      number.known.push_back(known.value);
    }
  }
  if (ContainsArgument(kOrders, op, argument.name())) {
    number.known.assign(kOwnFunctions.begin(), kOwnFunctions.end());
  }
  // The default of an omitted factor, which is mostly 1.
  const std::optional<c10::IValue>& fallback = argument.default_value();
  if (number.use == NumberUse::kFree && fallback.has_value() && fallback->isScalar() &&
      !fallback->isComplexDouble()) {
    number.known.push_back(fallback->toScalar().toDouble());
  }
  return number;
}

StartArgument StartArgumentOf(std::string_view op) {
  const auto row = std::ranges::lower_bound(kStarts, op, {}, &StartRow::op);
  return row != kStarts.end() && row->op == op ? row->start : StartArgument();
}

}  // namespace spmd::trace
