// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/parts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/strip.h"
#include "csrc/rules/families.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/scatter.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

using Sizes = std::vector<int64_t>;

Sizes SizesOf(const TensorType& type) { return {type.dims.begin(), type.dims.end()}; }

// Partial results of booleans combine with "or".
absl::StatusOr<OpFactors> AsTerms(const OpCall& call, absl::StatusOr<OpFactors> f) {
  SPMD_RETURN_IF_ERROR(f.status());
  if (call.operand(0).dtype != DType::kBool) return f;
  for (Factor& factor : f->factors) factor.reduce = ReduceKind::kOr;
  return f;
}

absl::StatusOr<OpFactors> GatherPartFactors(const OpCall& call) {
  return AsTerms(call, GatherFactors(call, IndexedDim::kInParts));
}
absl::StatusOr<OpFactors> IndexPartFactors(const OpCall& call) {
  return AsTerms(call, IndexFactors(call, IndexedDim::kInParts));
}
bool Adds(const OpCall& call) { return call.attrs().GetStringOr("reduce", "set") == "add"; }
absl::StatusOr<OpFactors> ScatterPartFactors(const OpCall& call) {
  return ScatterFactors(call, IndexedDim::kInParts, Adds(call));
}
absl::StatusOr<OpFactors> IndexWritePartFactors(const OpCall& call) {
  return IndexWriteFactors(call, IndexedDim::kInParts, Adds(call));
}
absl::StatusOr<OpFactors> IndexPutPartFactors(const OpCall& call) {
  return IndexPutFactors(call, IndexedDim::kInParts);
}
bool AddsOrSets(const OpCall& call) {
  const std::string reduce = call.attrs().GetStringOr("reduce", "set");
  return reduce == "add" || reduce == "set";
}

absl::StatusOr<OpFactors> SlicePartFactors(const OpCall& call) {
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", call.operand(0).rank());
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    if (d != dim) {
      f.Pass(d, d);
      continue;
    }
    f.OverOperand(0, d, f.Add(call.operand(0).dims[d]));
    f.OverResult(d, f.AddWhole(call.results[0].dims[d]));
  }
  return AsTerms(call, f.Take());
}
absl::StatusOr<OpFactors> SlicePutPartFactors(const OpCall& call) {
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", call.operand(0).rank());
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    const int factor = f.Pass(d, d);
    f.OverOperand(1, d, d == dim ? f.AddWhole(call.operand(1).dims[d]) : factor);
  }
  return f.Take();
}

// The call's attributes with "first" set to the tile's begin along dimension "dim", or along every
// dimension.
Attributes LocalFirst(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  const int rank = call.operand(0).rank();
  auto first = [&](int d) {
    return IsCut(factors.operands[0][d], cut) ? Expr::Start(Operand(0), d) : Expr(0);
  };
  Attributes local = call.attrs();
  if (call.attrs().Find("dim") != nullptr) {
    local.Set("first", ToAttr(first(static_cast<int>(call.Dim("dim", rank)))));
    return local;
  }
  std::vector<Expr> all;
  for (int d = 0; d < rank; ++d) all.push_back(first(d));
  local.Set("first", ToAttr(all));
  return local;
}

absl::StatusOr<std::vector<TensorType>> GatherPartTypes(const OpCall& call) {
  return std::vector<TensorType>{{call.operand(0).dtype, call.operand(1).dims}};
}
absl::StatusOr<std::vector<TensorType>> SlicePartTypes(const OpCall& call) {
  TensorType type = call.operand(0);
  type.dims[call.Dim("dim", type.rank())] = call.attrs().GetInt("length");
  return std::vector<TensorType>{std::move(type)};
}
absl::StatusOr<std::vector<TensorType>> IndexPartTypes(const OpCall& call) {
  return std::vector<TensorType>{{call.operand(0).dtype, IndexedDims(call)}};
}

// The part of one dimension: where it begins and how long it is.
Attributes Along(int64_t dim, int64_t size) {
  return {{"dim", dim}, {"first", int64_t{0}}, {"size", size}};
}
// The parts of all dimensions.
Attributes AlongAll(const TensorType& type, bool may_be_negative) {
  return {{"first", Sizes(type.rank(), 0)},
          {"size", SizesOf(type)},
          {"may_be_negative", may_be_negative}};
}

ir::ValueId CallWithIndices(Builder& b, const char* op, Operands operands, int num_indices,
                            Attributes attributes) {
  return b.CallAll(op, Values(operands.begin(), operands.end()), std::move(attributes),
                   {{1, num_indices}})[0];
}

ir::ValueId Flat(Builder& b, ir::ValueId v) { return b.View(v, {b.type(v).NumElements()}); }

// A tensor of `size` that repeats the value of an attribute.
ir::ValueId Filled(Builder& b, const Attr& value, DType dtype, Sizes size) {
  return b.Call("spmd::full", {}, {{"size", std::move(size)}, {"value", value}, {"dtype", dtype}});
}

ir::ValueId Expanded(Builder& b, ir::ValueId v, Sizes size) {
  return b.Call("aten::expand", {v}, {{"size", std::move(size)}, {"implicit", false}});
}

// How elements that are written combine with those that are there: the attribute, or "set".
std::string ReduceOf(const ir::Node& node) { return node.attributes.GetStringOr("reduce", "set"); }

// The attribute `dim`; 0 for a scalar.
int64_t DimOf(const ir::Graph& from, const ir::Node& node, int rank) {
  return rank == 0 ? 0 : OpCall::Of(from, node).Dim("dim", rank);
}

ValuesOrStatus Scatter(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands,
                       std::string reduce) {
  const TensorType self = b.type(operands[0]);
  const int64_t dim = DimOf(from, node, self.rank());
  const Sizes size = SizesOf(b.type(operands[1]));
  if (static_cast<int>(size.size()) != self.rank() || self.rank() == 0) return Values{};
  const ir::ValueId src = operands.size() > 2
                              ? operands[2]
                              : Filled(b, *node.attributes.Find("value"), self.dtype, size);
  Attributes attributes = Along(dim, self.dims[dim]);
  attributes.Set("reduce", std::move(reduce));
  attributes.Set("include_self", node.attributes.GetBoolOr("include_self", true));
  return Values{b.Call("spmd::scatter_part", {operands[0], operands[1], src}, attributes)};
}

ValuesOrStatus IndexWrite(Builder& b, const ir::Graph& from, const ir::Node& node,
                          Operands operands, std::string reduce) {
  const TensorType self = b.type(operands[0]);
  const int64_t dim = DimOf(from, node, self.rank());
  if (self.rank() == 0 || b.rank(operands[1]) != 1) return Values{};
  Sizes size = SizesOf(self);
  size[dim] = b.type(operands[1]).dims[0];
  ir::ValueId source = OptionalOperand(operands, 2);
  if (source == ir::kNoValue) {
    source = Filled(b, *node.attributes.Find("value"), self.dtype, size);
  } else if (b.rank(source) == 0) {
    source = Expanded(b, b.Cast(source, self.dtype), size);
  }
  Attributes attributes = Along(dim, self.dims[dim]);
  const Attr* alpha = node.attributes.Find("alpha");
  attributes.Set("alpha", alpha == nullptr ? Attr(int64_t{1}) : *alpha);
  attributes.Set("reduce", std::move(reduce));
  attributes.Set("include_self", node.attributes.GetBoolOr("include_self", true));
  return Values{b.Call("spmd::index_write_part", {operands[0], operands[1], source}, attributes)};
}

bool HasNothingToRead(const TensorType& self) {
  return self.rank() == 0 || self.NumElements() == 0;
}

bool IsMask(const TensorType& type) {
  return type.dtype == DType::kBool || type.dtype == DType::kU8;
}

// A single mask and a single value, where the true elements need not be counted.
ValuesOrStatus MaskedPut(Builder& b, const ir::Node& node, Operands operands) {
  const ir::ValueId values = operands.back();
  int masks = 0, first = 0;
  for (size_t k = 1; k + 1 < operands.size(); ++k) {
    if (operands[k] != ir::kNoValue) ++masks, first = static_cast<int>(k);
  }
  const bool simple = masks == 1 && b.type(values).NumElements() == 1 &&
                      !node.attributes.GetBoolOr("accumulate", false);
  if (!simple) return Values{};
  Sizes size = SizesOf(b.type(operands[first]));
  size.resize(b.rank(operands[0]) - (first - 1), 1);
  const ir::ValueId mask = b.Cast(b.View(operands[first], size), DType::kBool);
  const ir::ValueId value = b.Cast(b.View(values, {}), b.type(operands[0]).dtype);
  return Values{b.Where(mask, value, operands[0])};
}

ValuesOrStatus IndexPut(Builder& b, const ir::Node& node, Operands operands) {
  const int indices = static_cast<int>(operands.size()) - 2;
  for (int k = 1; k <= indices; ++k) {
    if (operands[k] != ir::kNoValue && IsMask(b.type(operands[k]))) {
      return MaskedPut(b, node, operands);
    }
  }
  Attributes attributes = AlongAll(b.type(operands[0]), /*may_be_negative=*/true);
  attributes.Set("accumulate", node.attributes.GetBoolOr("accumulate", false));
  return Values{CallWithIndices(b, "spmd::index_put_part", operands, indices, attributes)};
}

// Splits row-major indices into a tensor of `dims` into an index per dimension. An index that is
// out of range is out of range in the first dimension.
Values Unraveled(Builder& b, ir::ValueId index, const Dims& dims) {
  int64_t count = 1;
  for (int64_t n : dims) count *= n;
  const auto number = [&](int64_t n) { return b.Constant(static_cast<double>(n), DType::kI64); };
  index = b.Cast(index, DType::kI64);
  const ir::ValueId negative = b.Call("aten::lt.Scalar", {index}, {{"other", int64_t{0}}});
  ir::ValueId rest = b.Where(negative, b.Add(index, number(count)), index);
  Values indices(dims.size());
  for (size_t d = dims.size(); d-- > 1;) {
    const ir::ValueId above = b.Call("aten::floor_divide", {rest, number(dims[d])});
    indices[d] = b.Sub(rest, b.Mul(above, number(dims[d])));
    rest = above;
  }
  indices[0] = rest;
  return indices;
}

// Reads one index of dimension `dim`, which is dropped.
ir::ValueId SelectPart(Builder& b, ir::ValueId v, int64_t dim, int64_t index) {
  const TensorType self = b.type(v);
  if (index < 0) index += self.dims[dim];
  Values call(dim + 2, ir::kNoValue);
  call.front() = v;
  call.back() = b.Constant(static_cast<double>(index), DType::kI64);
  return CallWithIndices(b, "spmd::index_part", call, static_cast<int>(dim) + 1,
                         AlongAll(self, /*may_be_negative=*/false));
}

ValuesOrStatus Put(Builder& b, const ir::Node& node, Operands operands) {
  const TensorType self = b.type(operands[0]);
  if (self.NumElements() == 0 || self.rank() == 0) return Values{};
  Attributes attributes = AlongAll(self, /*may_be_negative=*/false);
  attributes.Set("accumulate", node.attributes.GetBoolOr("accumulate", false));
  Values call = {operands[0]};
  for (ir::ValueId i : Unraveled(b, Flat(b, operands[1]), self.dims)) call.push_back(i);
  call.push_back(Flat(b, operands[2]));
  return Values{CallWithIndices(b, "spmd::index_put_part", call, self.rank(), attributes)};
}

}  // namespace

ValuesOrStatus TakeByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                          Operands operands) {
  const TensorType self = b.type(operands[0]);
  if (HasNothingToRead(self)) return Values{};
  Values call = {operands[0]};
  for (ir::ValueId index : Unraveled(b, operands[1], self.dims)) call.push_back(index);
  return Values{CallWithIndices(b, "spmd::index_part", call, self.rank(),
                                AlongAll(self, /*may_be_negative=*/false))};
}

ValuesOrStatus GatherByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                            Operands operands) {
  const TensorType self = b.type(operands[0]);
  if (HasNothingToRead(self) || b.rank(operands[1]) != self.rank()) return Values{};
  const int64_t dim = DimOf(from, node, self.rank());
  return Values{
      b.Call("spmd::gather_part", {operands[0], operands[1]}, Along(dim, self.dims[dim]))};
}

ValuesOrStatus IndexSelectByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                                 Operands operands) {
  const TensorType self = b.type(operands[0]);
  if (HasNothingToRead(self) || b.rank(operands[1]) != 1) return Values{};
  Values spread(2 + DimOf(from, node, self.rank()), ir::kNoValue);
  spread.front() = operands[0];
  spread.back() = operands[1];
  return Values{CallWithIndices(b, "spmd::index_part", spread, static_cast<int>(spread.size()) - 1,
                                AlongAll(self, /*may_be_negative=*/false))};
}

ValuesOrStatus IndexByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                           Operands operands) {
  const TensorType self = b.type(operands[0]);
  if (HasNothingToRead(self)) return Values{};
  for (size_t k = 1; k < operands.size(); ++k) {
    if (operands[k] != ir::kNoValue && IsMask(b.type(operands[k]))) return Values{};
  }
  return Values{CallWithIndices(b, "spmd::index_part", operands,
                                static_cast<int>(operands.size()) - 1,
                                AlongAll(self, /*may_be_negative=*/true))};
}

// Only for an index that is known at compile time; for a run-time index the dimension stays whole.
ValuesOrStatus SelectByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                            Operands operands) {
  const Attr* index = node.attributes.Find("index");
  if (index == nullptr || !std::holds_alternative<int64_t>(*index)) return Values{};
  const TensorType self = b.type(operands[0]);
  const int64_t dim = OpCall::Of(from, node).Dim("dim", self.rank());
  return Values{SelectPart(b, operands[0], dim, std::get<int64_t>(*index))};
}

ValuesOrStatus SliceOneByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  const TensorType self = b.type(operands[0]);
  const int64_t dim = OpCall::Of(from, node).Dim("dim", self.rank());
  if (from.type(node.first_result).dims[dim] != 1) return Values{};
  int64_t start = node.attributes.GetIntOr("start", 0);
  if (start < 0) start += self.dims[dim];
  const ir::ValueId row = SelectPart(b, operands[0], dim, std::max<int64_t>(start, 0));
  return Values{b.Call("aten::unsqueeze", {row}, {{"dim", dim}})};
}

ValuesOrStatus SliceStartByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  const TensorType self = b.type(operands[0]);
  const int64_t dim = OpCall::Of(from, node).Dim("dim", self.rank());
  Attributes attributes = Along(dim, self.dims[dim]);
  attributes.Set("start", *node.attributes.Find("start"));
  attributes.Set("length", node.attributes.GetInt("length"));
  return Values{b.Call("spmd::slice_part", {operands[0]}, attributes)};
}

ValuesOrStatus SliceStartScatterByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                                       Operands operands) {
  const TensorType self = b.type(operands[0]);
  const int64_t dim = OpCall::Of(from, node).Dim("dim", self.rank());
  Attributes attributes = Along(dim, self.dims[dim]);
  attributes.Set("start", *node.attributes.Find("start"));
  return b.CallAll("spmd::slice_put_part", Values(operands.begin(), operands.end()), attributes,
                   /*groups=*/{}, node.updates);
}

ValuesOrStatus PutByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                         Operands operands) {
  return Put(b, node, operands);
}
ValuesOrStatus IndexPutByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  return IndexPut(b, node, operands);
}
ValuesOrStatus ScatterByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  return Scatter(b, from, node, operands, ReduceOf(node));
}
ValuesOrStatus ScatterAddByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  return Scatter(b, from, node, operands, "add");
}
ValuesOrStatus IndexWriteByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  return IndexWrite(b, from, node, operands, ReduceOf(node));
}
ValuesOrStatus IndexAddByPart(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  return IndexWrite(b, from, node, operands, "add");
}

namespace {

constexpr Row Part(absl::string_view op, FactorsFn factors, TypesFn types) {
  return Computed(op, factors).Types(types).Local(LocalFirst).Flops(kTrafficOnly);
}

constexpr auto kPartRows =
    Rows(Part("spmd::gather_part", GatherPartFactors, GatherPartTypes)
             .Jointly({0})
             .FailsOnIndices("size")
             .With(&OpFacts::looks_up, true),
         Part("spmd::index_part", IndexPartFactors, IndexPartTypes)
             .Jointly({0})
             .With(&OpFacts::looks_up, true)
             .With(&OpFacts::rows, RowsByList::kTakes),
         Accumulates(Part("spmd::index_put_part", IndexPutPartFactors, SameTypes))
             .With(&OpFacts::rows, RowsByList::kWrites),
         Accumulates(Part("spmd::index_write_part", IndexWritePartFactors, SameTypes))
             .Jointly({0, 2})
             .LinearIf(AddsOrSets)
             .FailsOnIndices("size"),
         Accumulates(Part("spmd::scatter_part", ScatterPartFactors, SameTypes))
             .Jointly({0, 2})
             .LinearIf(AddsOrSets)
             .FailsOnIndices("size"),
         Part("spmd::slice_part", SlicePartFactors, SlicePartTypes)
             .Jointly({0})
             .With(&OpFacts::looks_up, true),
         Part("spmd::slice_put_part", SlicePutPartFactors, SameTypes).Jointly({0, 1}).Monotone());
static_assert(AreRowsOf(Family::kPart, kPartRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> PartRows() { return kPartRows; }

}  // namespace spmd::rules
