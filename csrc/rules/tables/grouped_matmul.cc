// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/grouped_matmul.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

// Which dimension of which operand the groups divide, and which operand has a dimension of groups.
struct Form {
  const char* text;  // "[o]" is the list of offsets
  int operand, dim;  // this dimension of this operand is divided at the offsets
  int groups;        // the operand whose dimension 0 is the groups; -1 for the result
};
constexpr Form kRowsInGroups = {"t k, g k n, [o] -> t n", 0, 0, 1};
constexpr Form kContracted = {"m t, t n, [o] -> g m n", 0, 1, -1};
constexpr Form kColumns = {"g m k, k t, [o] -> m t", 1, 1, 0};

absl::StatusOr<Form> FormOf(const OpCall& call) {
  const int a = call.operand(0).rank(), b = call.operand(1).rank();
  if (a == 2 && b == 3) return kRowsInGroups;
  if (a == 2 && b == 2) return kContracted;
  if (a == 3 && b == 2) return kColumns;
  return absl::InvalidArgumentError(
      absl::StrCat(call.ToString(), ": expected matrices of rank 2 and 3 with offsets"));
}

Dims ResultDims(const Dims& a, const Dims& b, int64_t num_groups) {
  if (a.size() == 2 && b.size() == 2) return {num_groups, a[0], b[1]};
  if (a.size() == 3 && b.size() == 3) return {a[0], a[1], b[2]};
  return a.size() == 2 ? Dims{a[0], b[2]} : Dims{a[1], b[1]};
}

DType DTypeOr(const Attributes& attributes, absl::string_view name, DType fallback) {
  const Attr* attr = attributes.Find(name);
  return attr != nullptr && std::holds_alternative<DType>(*attr) ? std::get<DType>(*attr)
                                                                 : fallback;
}

ValueId Product(Builder& b, ValueId self, ValueId mat2, ValueId offsets) {
  if (offsets == ir::kNoValue) return b.Call("aten::bmm", {self, mat2});
  return b.Call("spmd::grouped_mm", {self, mat2, offsets},
                {{"first_group", int64_t{0}},
                 {"num_groups", b.type(offsets).dims[0]},
                 {"first_index", int64_t{0}}});
}

ValueId OperandOr(Operands operands, size_t i) {
  return i < operands.size() ? operands[i] : ir::kNoValue;
}

}  // namespace

absl::StatusOr<std::vector<ValueId>> GroupedMatmul(Builder& b, const ir::Graph& from,
                                                   const ir::Node& node, Operands operands) {
  return std::vector<ValueId>{Product(b, operands[0], operands[1], OperandOr(operands, 2))};
}

absl::StatusOr<std::vector<ValueId>> ScaledGroupedMatmul(Builder& b, const ir::Graph& from,
                                                         const ir::Node& node, Operands operands) {
  const Dims self = b.type(operands[0]).dims, mat2 = b.type(operands[1]).dims;
  const ValueId offsets = OperandOr(operands, 4);
  ValueId left = b.Cast(operands[0], DType::kF32), right = b.Cast(operands[1], DType::kF32);
  // Scales of the rows and of the columns of the result: [t] or [g, m], and [t] or [g, n].
  ValueId rows = operands[2], columns = operands[3];
  if (self.size() == 2 && mat2.size() == 3) {
    right = b.Mul(right, b.View(columns, {mat2[0], 1, mat2[2]}));
    columns = ir::kNoValue;
    rows = b.View(rows, {self[0], 1});
  } else if (self.size() == 3 && mat2.size() == 2) {
    left = b.Mul(left, b.View(rows, {self[0], self[1], 1}));
    rows = ir::kNoValue;
    columns = b.View(columns, {1, mat2[1]});
  } else {
    const int64_t groups = self.size() == 3 ? self[0] : b.type(offsets).dims[0];
    rows = b.View(rows, {groups, self[self.size() - 2], 1});
    columns = b.View(columns, {groups, 1, mat2.back()});
  }
  ValueId result = Product(b, left, right, offsets);
  if (rows != ir::kNoValue) result = b.Mul(result, rows);
  if (columns != ir::kNoValue) result = b.Mul(result, columns);
  return std::vector<ValueId>{b.Cast(result, from.type(node.first_result).dtype)};
}

absl::StatusOr<OpFactors> GroupedMatmulFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(const Form form, FormOf(call));
  SPMD_ASSIGN_OR_RETURN(const EinsumPattern pattern, ParseEinsum(form.text));
  return EinsumFactors(pattern, call);
}

absl::StatusOr<std::vector<TensorType>> GroupedMatmulTypes(const OpCall& call) {
  const TensorType &self = call.operand(0), &mat2 = call.operand(1);
  return std::vector<TensorType>{
      {self.dtype, ResultDims(self.dims, mat2.dims, call.attrs().GetInt("num_groups"))}};
}

Attributes LocalGroupedMatmul(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  const Form form = FormOf(call).value();
  const DimFactors& groups =
      form.groups >= 0 ? factors.operands[form.groups][0] : factors.results[0][0];
  if (IsCut(groups, cut)) {
    const TensorRef holder = form.groups >= 0 ? Operand(form.groups) : Result(0);
    local.Set("first_group", Expr::Start(holder, 0));
    local.Set("num_groups", Expr::Size(holder, 0));
  }
  if (IsCut(factors.operands[form.operand][form.dim], cut)) {
    local.Set("first_index", Expr::Start(Operand(form.operand), form.dim));
  }
  return local;
}

absl::StatusOr<OpFactors> ScaledMatmulFactors(const OpCall& call) {
  const DType result = DTypeOr(call.attrs(), "out_dtype", call.operand(0).dtype);
  // Partial sums must be neither rounded to eight bits nor scaled for that type one by one.
  const bool whole = call.has(5) || ByteSize(result) == 1;
  const bool scaled_by_row = call.operand(2).NumElements() > 1;
  const bool scaled_by_column = call.operand(3).NumElements() > 1;
  const Dims &a = call.operand(0).dims, &b = call.operand(1).dims;
  const bool one_scale_per_row = !scaled_by_row || call.operand(2).dims == Dims{a[0], 1};
  const bool one_scale_per_column = !scaled_by_column || call.operand(3).dims == Dims{1, b[1]};
  // Otherwise there is one scale per block.
  if (!one_scale_per_row || !one_scale_per_column) return WholeFactors(call);
  CallFactors f(call);
  const int m = f.Add(a[0]), n = f.Add(b[1]), k = whole ? f.AddWhole(a[1]) : f.Add(a[1]);
  f.OverOperand(0, 0, m);
  f.OverOperand(0, 1, k);
  f.OverOperand(1, 0, k);
  f.OverOperand(1, 1, n);
  if (scaled_by_row) f.OverOperand(2, 0, m);
  if (scaled_by_column) f.OverOperand(3, 1, n);
  if (call.has(4)) f.OverOperand(4, 0, n);
  f.OverResult(0, m);
  f.OverResult(1, n);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> ScaledMatmulTypes(const OpCall& call) {
  const TensorType &a = call.operand(0), &b = call.operand(1);
  return std::vector<TensorType>{
      {DTypeOr(call.attrs(), "out_dtype", a.dtype), {a.dims[0], b.dims[1]}}};
}

}  // namespace spmd::rules
