// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/joining.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/promotion.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// True for an empty vector, which PyTorch allows among operands of any rank and ignores.
bool IsLegacyEmpty(const TensorType& type, int rank) {
  return type.rank() == 1 && type.dims[0] == 0 && rank != 1;
}

// The rank of the tensors that a cat joins.
int CatRank(const OpCall& call) {
  int rank = 1;
  for (const TensorType* type : call.operands) {
    if (!(type->rank() == 1 && type->dims[0] == 0)) rank = type->rank();
  }
  return rank;
}

std::vector<bool> Named(const OpCall& call, const std::vector<int64_t>& dims, int rank) {
  std::vector<bool> named(rank, false);
  for (int64_t d : dims) {
    const int64_t dim = call.Wrapped(d, "dims", rank);
    if (rank > 0) named[dim] = true;
  }
  return named;
}

// "pad" lists the elements before and after, the last dimension first; negative numbers crop.
struct Padding {
  int64_t before = 0;
  int64_t after = 0;
  bool none() const { return before == 0 && after == 0; }
};
std::vector<Padding> PaddingOf(const OpCall& call) {
  const std::vector<int64_t>& pad = call.attrs().GetInts("pad");
  const int rank = call.operand(0).rank();
  std::vector<Padding> padding(rank);
  for (int i = 0; i < static_cast<int>(pad.size()) / 2 && i < rank; ++i) {
    padding[rank - 1 - i] = {pad[2 * i], pad[2 * i + 1]};
  }
  return padding;
}

// The real number in "value" that padding fills with; null if it is not known at compile time.
const double* FillOf(const OpCall& call, double* storage) {
  const Attr* value = call.attrs().Find("value");
  *storage = 0;
  if (value == nullptr || std::holds_alternative<NoneAttr>(*value)) return storage;
  if (const auto* d = std::get_if<double>(value)) return d;
  if (const auto* i = std::get_if<int64_t>(value))
    *storage = static_cast<double>(*i);
  else if (const auto* b = std::get_if<bool>(value))
    *storage = *b;
  else
    return nullptr;
  return storage;
}

ir::ValueId Cat(Builder& b, std::vector<ir::ValueId> parts, int64_t dim) {
  const int n = static_cast<int>(parts.size());
  return b.CallAll("aten::cat", std::move(parts), {{"dim", dim}}, {{0, n}})[0];
}

}  // namespace

absl::StatusOr<OpFactors> CatFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const int rank = call.results[0].rank();
  const int64_t dim = call.Dim("dim", rank);
  for (int d = 0; d < rank; ++d) f.OverResult(d, f.Add(dims[d]));
  int64_t offset = 0;
  for (int k = 0; k < static_cast<int>(call.operands.size()); ++k) {
    const TensorType& type = call.operand(k);
    if (IsLegacyEmpty(type, rank)) continue;
    for (int d = 0; d < rank; ++d) {
      if (d != dim || type.dims[d] == dims[d]) {
        f.OverOperand(k, d, d);
      } else if (type.dims[d] > 0) {
        const ExprInterval shard = WindowShard();
        f.OverWindow(k, d, d,
                     {Clamp(shard.begin - offset, 0, type.dims[d]),
                      Clamp(shard.end - offset, 0, type.dims[d])});
      }
    }
    offset += type.dims[dim];
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> CatTypes(const OpCall& call) {
  const int rank = CatRank(call);
  const int64_t dim = call.Dim("dim", rank);
  TensorType result{PromotedDType(call), {}};
  for (const TensorType* type : call.operands) {
    if (IsLegacyEmpty(*type, rank)) continue;
    if (result.dims.empty()) {
      result.dims = type->dims;
      continue;
    }
    for (int d = 0; d < rank; ++d) {
      if (type->rank() != rank || (d != dim && type->dims[d] != result.dims[d])) {
        return absl::InvalidArgumentError(
            absl::StrCat(call.ToString(), ": operands must agree in every dimension but ", dim));
      }
    }
    result.dims[dim] += type->dims[dim];
  }
  if (result.dims.empty()) result.dims = {0};
  return std::vector<TensorType>{std::move(result)};
}

absl::StatusOr<OpFactors> StackFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const int rank = call.results[0].rank();
  const int64_t dim = call.Dim("dim", rank);
  for (int d = 0, next = 0; d < rank; ++d) {
    const int factor = d == dim ? f.AddWhole(dims[d]) : f.Add(dims[d]);
    f.OverResult(d, factor);
    if (d == dim) continue;
    for (int k = 0; k < static_cast<int>(call.operands.size()); ++k) f.OverOperand(k, next, factor);
    ++next;
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> StackTypes(const OpCall& call) {
  TensorType result{PromotedDType(call), call.operand(0).dims};
  const int64_t dim = call.Dim("dim", result.rank() + 1);
  result.dims.insert(result.dims.begin() + dim, static_cast<int64_t>(call.operands.size()));
  return std::vector<TensorType>{std::move(result)};
}

absl::StatusOr<std::vector<ir::ValueId>> StackAsCat(Builder& b, const ir::Graph& from,
                                                    const ir::Node& node, Operands operands) {
  const int64_t dim = OpCall::Of(from, node).Dim("dim", b.rank(operands[0]) + 1);
  std::vector<ir::ValueId> parts;
  for (ir::ValueId v : operands) parts.push_back(b.Call("aten::unsqueeze", {v}, {{"dim", dim}}));
  return std::vector<ir::ValueId>{Cat(b, std::move(parts), dim)};
}

absl::StatusOr<OpFactors> PadFactors(const OpCall& call) {
  CallFactors f(call);
  const std::vector<Padding> padding = PaddingOf(call);
  double storage;
  const double* fill = FillOf(call, &storage);
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    const int64_t size = call.results[0].dims[d];
    if (padding[d].none()) {
      f.Pass(d, d);
    } else if (fill != nullptr && call.operand(0).dims[d] > 0) {
      const int factor = f.Add(size);
      f.OverResult(d, factor);
      const ExprInterval shard = WindowShard();
      f.OverWindow(0, d, factor, {shard.begin - padding[d].before, shard.end - padding[d].before},
                   *fill);
    } else {
      f.OverResult(d, f.AddWhole(size));
      f.OverOperand(0, d, f.AddWhole(call.operand(0).dims[d]));
    }
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> PadTypes(const OpCall& call) {
  TensorType type = call.operand(0);
  const std::vector<Padding> padding = PaddingOf(call);
  for (int d = 0; d < type.rank(); ++d) {
    type.dims[d] = CheckedAdd(CheckedAdd(type.dims[d], padding[d].before), padding[d].after);
  }
  return std::vector<TensorType>{std::move(type)};
}

Attributes LocalPad(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  std::vector<int64_t> pad = call.attrs().GetInts("pad");
  const int rank = call.operand(0).rank();
  for (int i = 0; i < static_cast<int>(pad.size()) / 2 && i < rank; ++i) {
    if (IsCut(factors.results[0][rank - 1 - i], cut)) pad[2 * i] = pad[2 * i + 1] = 0;
  }
  Attributes local = call.attrs();
  local.Set("pad", std::move(pad));
  return local;
}

bool PadsWithZero(const OpCall& call) {
  double storage;
  const double* fill = FillOf(call, &storage);
  return fill != nullptr && *fill == 0;
}

absl::StatusOr<std::vector<ir::ValueId>> PadThenFill(Builder& b, const ir::Graph& from,
                                                     const ir::Node& node, Operands operands) {
  const Attr* value = node.attributes.Find("value");
  if (value == nullptr || !std::holds_alternative<RuntimeScalar>(*value)) {
    return std::vector<ir::ValueId>{};
  }
  const OpCall call = OpCall::Of(from, node);
  const std::vector<Padding> padding = PaddingOf(call);
  const TensorType& type = call.results[0];
  const Dims& sizes = call.operand(0).dims;
  ir::ValueId given = ir::kNoValue;  // mask: true for elements of the operand
  for (int d = 0; d < type.rank(); ++d) {
    if (padding[d].none()) continue;
    const ir::ValueId i = b.Iota(type.dims[d], d, type.rank());
    const ir::ValueId along = b.Call(
        "aten::logical_and",
        {b.Call("aten::ge.Scalar", {i}, {{"other", padding[d].before}}),
         b.Call("aten::lt.Scalar", {i}, {{"other", CheckedAdd(padding[d].before, sizes[d])}})});
    given = given == ir::kNoValue ? along : b.Call("aten::logical_and", {given, along});
  }
  if (given == ir::kNoValue) return std::vector<ir::ValueId>{b.Alias(operands[0])};
  const ir::ValueId padded = b.Call("aten::constant_pad_nd", {operands[0]},
                                    {{"pad", call.attrs().GetInts("pad")}, {"value", int64_t{0}}});
  const ir::ValueId fill =
      b.Call("spmd::full", {},
             {{"size", std::vector<int64_t>{}}, {"value", *value}, {"dtype", type.dtype}});
  return std::vector<ir::ValueId>{b.Where(given, padded, fill)};
}

absl::StatusOr<OpFactors> FlipFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const std::vector<bool> flipped =
      Named(call, call.attrs().GetInts("dims"), call.results[0].rank());
  for (int d = 0; d < call.results[0].rank(); ++d) {
    if (!flipped[d]) {
      f.Pass(d, d);
      continue;
    }
    const int factor = f.Add(dims[d]);
    f.OverResult(d, factor);
    const ExprInterval shard = WindowShard();
    f.OverWindow(0, d, factor, {Expr(dims[d]) - shard.end, Expr(dims[d]) - shard.begin});
  }
  return f.Take();
}

absl::StatusOr<OpFactors> RollFactors(const OpCall& call) {
  CallFactors f(call);
  const std::vector<int64_t>& shifts = call.attrs().GetInts("shifts");
  const std::vector<int64_t> named = call.attrs().GetIntsOr("dims", {});
  const int rank = call.results[0].rank();
  for (int d = 0; d < rank; ++d) {
    const int64_t n = call.results[0].dims[d];
    int64_t shift = 0;
    for (size_t i = 0; i < named.size() && n > 0; ++i) {
      if (call.Wrapped(named[i], "dims", rank) == d) shift += shifts.at(i) % n;
    }
    const int64_t from = n == 0 ? 0 : ((-shift) % n + n) % n;  // where the result begins
    if (named.empty()) {
      const int factor = f.AddWhole(n);
      f.OverResult(d, factor);
      f.OverOperand(0, d, factor);
    } else if (from == 0) {
      f.Pass(d, d);
    } else {
      const int factor = f.Add(n);
      f.OverResult(d, factor);
      f.OverOrder(0, d, factor, {{from, n}, {0, from}});
    }
  }
  return f.Take();
}

absl::StatusOr<OpFactors> RollStartFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = call.operand(0).rank();
  const int64_t dim = call.Dim("dim", rank), reach = call.attrs().GetInt("reach");
  const int64_t n = call.operand(0).dims[dim], rows = std::abs(reach);
  SPMD_REQUIRE(reach != 0 && n % rows == 0, call.ToString(), ": reach ", reach);
  for (int d = 0; d < rank; ++d) {
    const int factor = f.Pass(d, d);
    if (d != dim) {
      f.OverOperand(1, d, factor);
      continue;
    }
    // What lies before a shard, or behind it, is one block of `rows`, since shards are blocks.
    const ExprInterval shard = WindowShard();
    if (reach > 0) {
      f.OverOrder(1, d, factor, {{n - rows, n}, {0, n - rows}},
                  {Min(shard.begin, n - rows), Min(shard.begin, n - rows) + rows});
    } else {
      f.OverOrder(1, d, factor, {{rows, n}, {0, rows}},
                  {Max(shard.end, rows) - rows, Max(shard.end, rows)});
    }
  }
  OpFactors factors = f.Take();
  factors.factors[dim].granularity = rows;
  return factors;
}

Attributes LocalRoll(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  std::vector<int64_t> shifts = call.attrs().GetInts("shifts");
  const std::vector<int64_t> named = call.attrs().GetIntsOr("dims", {});
  const int rank = call.results[0].rank();
  for (size_t i = 0; i < named.size(); ++i) {
    const int64_t d = call.Wrapped(named[i], "dims", rank);
    if (rank > 0 && IsCut(factors.results[0][d], cut)) shifts.at(i) = 0;
  }
  Attributes local = call.attrs();
  local.Set("shifts", std::move(shifts));
  return local;
}

absl::StatusOr<std::vector<ir::ValueId>> RollAsVector(Builder& b, const ir::Graph& from,
                                                      const ir::Node& node, Operands operands) {
  const TensorType type = b.type(operands[0]);
  const std::vector<int64_t> dims = node.attributes.GetIntsOr("dims", {});
  if (!dims.empty()) return std::vector<ir::ValueId>{};
  const ir::ValueId rolled =
      b.Call("aten::roll", {b.View(operands[0], {type.NumElements()})},
             {{"shifts", node.attributes.GetInts("shifts")}, {"dims", std::vector<int64_t>{0}}});
  return std::vector<ir::ValueId>{
      b.View(rolled, std::vector<int64_t>(type.dims.begin(), type.dims.end()))};
}

absl::StatusOr<OpFactors> ReorderFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = call.results[0].rank();
  const int64_t dim = call.Dim("dim", rank);
  const std::vector<int64_t>& index = call.attrs().GetInts("index");
  for (int d = 0; d < rank; ++d) {
    if (d != dim || index.empty()) {
      f.Pass(d, d);
      continue;
    }
    SPMD_REQUIRE(static_cast<int64_t>(index.size()) == call.results[0].dims[d], "index has ",
                 index.size(), " entries for the ", call.results[0].dims[d],
                 " indices of dimension ", d);
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor);
    std::vector<Interval> order;
    for (int64_t i : index) {
      SPMD_REQUIRE(IsPosition(i), "index ", i, " is one of no tensor");
      if (!order.empty() && order.back().end == i && i > 0) {
        order.back().end = i + 1;
      } else {
        order.push_back({i, i + 1});
      }
    }
    f.OverOrder(0, d, factor, std::move(order));
  }
  return f.Take();
}

Attributes LocalReorder(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  const int64_t dim = call.Dim("dim", call.results[0].rank());
  if (IsCut(factors.results[0][dim], cut)) local.Set("index", std::vector<int64_t>{});
  return local;
}

absl::StatusOr<OpFactors> UnfoldFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = call.operand(0).rank();
  const int64_t dim = call.Dim("dimension", rank);
  const int64_t size = call.attrs().GetInt("size"), step = call.attrs().GetInt("step");
  for (int d = 0; d < rank; ++d) {
    if (d != dim || (size == 1 && step == 1)) {
      f.Pass(d, d);
      continue;
    }
    const int factor = f.Add(call.results[0].dims[d]);
    f.OverResult(d, factor);
    const ExprInterval shard = WindowShard();
    f.OverWindow(0, d, factor, {shard.begin * step, shard.end * step + CheckedSub(size, step)});
  }
  f.OverResult(rank, f.AddWhole(call.results[0].dims[rank]));
  return f.Take();
}

absl::StatusOr<OpFactors> UnfoldBackwardFactors(const OpCall& call) {
  CallFactors f(call);
  const int rank = call.results[0].rank();
  const int64_t dim = call.Dim("dim", rank);
  for (int d = 0; d < rank; ++d) {
    if (d != dim) {
      f.Pass(d, d);
      continue;
    }
    f.OverResult(d, f.AddWhole(call.results[0].dims[d]));
    f.OverOperand(0, d, f.AddWhole(call.operand(0).dims[d]));
  }
  f.OverOperand(0, rank, f.AddWhole(call.operand(0).dims[rank]));
  return f.Take();
}

Attributes LocalTriangle(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  const int rank = call.results[0].rank();
  const TensorFactors& dims = factors.results[0];
  Expr diagonal = call.attrs().GetIntOr("diagonal", 0);
  if (IsCut(dims[rank - 2], cut)) diagonal = Expr::Start(Result(0), rank - 2) + diagonal;
  if (IsCut(dims[rank - 1], cut)) diagonal = diagonal - Expr::Start(Result(0), rank - 1);
  Attributes local = call.attrs();
  local.Set("diagonal", ToAttr(diagonal));
  return local;
}

}  // namespace spmd::rules
