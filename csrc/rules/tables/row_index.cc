// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/row_index.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/sorted.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

struct RowsCall {
  int dim = 0;  // of self, in blocks
  int64_t blocks = 0;
  int64_t rows = 0;  // the length of each index
  std::vector<int> kept, replaced;
  int lead = 0;  // the dimension of the rows

  int PlaceOfKept(int i) const { return i < lead ? i : i + 1; }
};

// `count`: how many of the operands after self are indices.
RowsCall Read(const OpCall& call, int count) {
  RowsCall x;
  const TensorType& self = call.operand(0);
  for (int d = 0; d < self.rank(); ++d) {
    const bool replaced = d < count && call.has(1 + d);
    (replaced ? x.replaced : x.kept).push_back(d);
    if (!replaced) continue;
    const TensorType& index = call.operand(1 + d);
    const bool integers = IsIntegral(index.dtype, /*include_bool=*/false);
    SPMD_REQUIRE(index.rank() == 1 && integers && index.dtype != DType::kU8, call.ToString(),
                 ": an index is no list of integers");
    SPMD_REQUIRE(x.replaced.size() == 1 || index.dims[0] == x.rows, call.ToString(),
                 ": the indices differ in length");
    x.rows = index.dims[0];
  }
  x.dim = static_cast<int>(call.Dim("dim", self.rank()));
  x.blocks = call.attrs().GetInt("blocks");
  const bool indexed = std::find(x.replaced.begin(), x.replaced.end(), x.dim) != x.replaced.end();
  SPMD_REQUIRE(indexed, call.ToString(), ": dimension ", x.dim, " has no index");
  SPMD_REQUIRE(x.blocks > 0 && self.dims[x.dim] % x.blocks == 0, call.ToString(), ": dimension ",
               x.dim, " is not ", x.blocks, " blocks");
  x.lead = RowsDim(x.replaced);
  return x;
}

// The factors of self's indexed dimensions, of which the first is that of the blocks.
std::vector<std::vector<int>> OverIndexed(CallFactors& f, const OpCall& call, const RowsCall& x) {
  std::vector<std::vector<int>> over(call.operand(0).rank());
  const int blocks = f.Add(x.blocks);
  for (const int d : x.replaced) {
    const int64_t size = call.operand(0).dims[d];
    if (d == x.dim) {
      over[d] = {blocks, f.AddWhole(size / x.blocks)};
    } else {
      over[d] = {f.AddWhole(size)};
    }
    for (const int factor : over[d]) f.OverOperand(0, d, factor);
  }
  return over;
}

struct OpUse {
  std::string_view op;
  RowsUse use;
};
constexpr OpUse kUses[] = {
    {"aten::_index_put_impl", RowsUse::kWrite},   {"aten::_unsafe_index.Tensor", RowsUse::kRead},
    {"aten::_unsafe_index_put", RowsUse::kWrite}, {"aten::index.Tensor", RowsUse::kRead},
    {"aten::index_add", RowsUse::kAddAlong},      {"aten::index_put", RowsUse::kWrite},
    {"aten::index_select", RowsUse::kReadAlong},  {"spmd::rows_apart", RowsUse::kApart},
    {"spmd::rows_together", RowsUse::kTogether},
};
static_assert(IsSortedAndUnique(kUses, &OpUse::op));

}  // namespace

RowsUse RowsUseOf(absl::string_view op) {
  const std::string_view name{op.data(), op.size()};
  const OpUse* const at = std::ranges::lower_bound(kUses, name, {}, &OpUse::op);
  return at != std::end(kUses) && at->op == name ? at->use : RowsUse::kNone;
}

int RowsDim(absl::Span<const int> replaced) {
  const bool adjacent = replaced.back() - replaced.front() + 1 == static_cast<int>(replaced.size());
  return adjacent ? replaced.front() : 0;
}

absl::StatusOr<OpFactors> IndexRowsFactors(const OpCall& call) {
  const RowsCall x = Read(call, static_cast<int>(call.operands.size()) - 1);
  CallFactors f(call);
  const int blocks = OverIndexed(f, call, x)[x.dim].front();
  for (int i = 0; i < static_cast<int>(x.kept.size()); ++i) f.Pass(x.kept[i], x.PlaceOfKept(i));
  const int rows = f.Add(x.rows);
  for (const int d : x.replaced) f.OverOperand(1 + d, 0, rows);
  f.OverResult(x.lead, blocks);
  f.OverResult(x.lead, rows);
  return f.Take();
}

absl::StatusOr<OpFactors> IndexPutRowsFactors(const OpCall& call) {
  const int values = static_cast<int>(call.operands.size()) - 1;
  const RowsCall x = Read(call, values - 1);
  CallFactors f(call);
  const auto over = OverIndexed(f, call, x);
  for (const int d : x.replaced) {
    for (const int factor : over[d]) f.OverResult(d, factor);
  }
  for (int i = 0; i < static_cast<int>(x.kept.size()); ++i) {
    f.OverOperand(values, x.PlaceOfKept(i), f.Pass(x.kept[i], x.kept[i]));
  }
  // Of several values written to one element, the last one must win.
  const bool accumulate = call.attrs().GetBoolOr("accumulate", false);
  const int rows = accumulate ? f.Add(x.rows) : f.AddWhole(x.rows);
  for (const int d : x.replaced) f.OverOperand(1 + d, 0, rows);
  f.OverOperand(values, x.lead, over[x.dim].front());
  f.OverOperand(values, x.lead, rows);
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> IndexRowsTypes(const OpCall& call) {
  const RowsCall x = Read(call, static_cast<int>(call.operands.size()) - 1);
  const TensorType& self = call.operand(0);
  Dims dims(x.kept.size() + 1);
  for (int i = 0; i < static_cast<int>(x.kept.size()); ++i) {
    dims[x.PlaceOfKept(i)] = self.dims[x.kept[i]];
  }
  dims[x.lead] = x.blocks * x.rows;
  return std::vector<TensorType>{{self.dtype, dims}};
}

Attributes LocalRows(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  const TensorType& self = call.operand(0);
  const int dim = static_cast<int>(call.Dim("dim", self.rank()));
  Attributes local = call.attrs();
  if (!IsCut(factors.operands[0][dim], cut)) return local;
  std::vector<Expr> first(self.rank(), Expr(0));
  first[dim] = Expr::Start(Operand(0), dim);
  local.Set("first", ToAttr(first));
  const int64_t length = self.dims[dim] / call.attrs().GetInt("blocks");
  local.Set("blocks", ToAttr(FloorDiv(Expr::Size(Operand(0), dim), length)));
  return local;
}

BlocksOfRows BlocksOfRows::Of(const OpCall& call) {
  const TensorType& rows = call.operand(0);
  const TensorType& list = call.operand(1);
  const BlocksOfRows of{static_cast<int>(call.Dim("dim", rows.rank())), call.attrs().GetInt("size"),
                        call.attrs().GetInt("blocks")};
  SPMD_REQUIRE(list.rank() == 1 && IsIntegral(list.dtype, /*include_bool=*/false) &&
                   list.dtype != DType::kU8,
               call.ToString(), ": the index is no list of integers");
  SPMD_REQUIRE(of.blocks > 0 && of.size > 0 && of.size % of.blocks == 0, call.ToString(),
               ": a dimension of ", of.size, " is not ", of.blocks, " blocks");
  return of;
}

// `apart`: how many times the dimension of the rows has the list, in operand 0.
static absl::StatusOr<std::vector<TensorType>> TypesOfRows(const OpCall& call, bool apart) {
  const BlocksOfRows of = BlocksOfRows::Of(call);
  TensorType type = call.operand(0);
  const int64_t n = call.operand(1).dims[0];
  SPMD_REQUIRE(type.dims[of.dim] == (apart ? n : CheckedMul(n, of.blocks)), call.ToString(),
               ": there are not as many rows as indices");
  type.dims[of.dim] = apart ? CheckedMul(n, of.blocks) : n;
  return std::vector<TensorType>{type};
}

absl::StatusOr<std::vector<TensorType>> RowsApartTypes(const OpCall& call) {
  return TypesOfRows(call, /*apart=*/true);
}
absl::StatusOr<std::vector<TensorType>> RowsTogetherTypes(const OpCall& call) {
  return TypesOfRows(call, /*apart=*/false);
}

static OpFactors FactorsOfRows(const OpCall& call, bool apart) {
  const BlocksOfRows of = BlocksOfRows::Of(call);
  CallFactors f(call);
  const int blocks = f.AddWhole(of.blocks);
  const int rows = f.AddWhole(call.operand(1).dims[0]);
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    if (d != of.dim) {
      f.Pass(d, d);
      continue;
    }
    if (apart) {
      f.OverResult(d, blocks);
    } else {
      f.OverOperand(0, d, blocks);
    }
    f.OverOperand(0, d, rows);
    f.OverResult(d, rows);
  }
  f.OverOperand(1, 0, rows);
  return f.Take();
}

absl::StatusOr<OpFactors> RowsApartFactors(const OpCall& call) {
  return FactorsOfRows(call, /*apart=*/true);
}
absl::StatusOr<OpFactors> RowsTogetherFactors(const OpCall& call) {
  return FactorsOfRows(call, /*apart=*/false);
}

ValuesOrStatus RowsApartByBlocks(Builder& b, const ir::Graph& from, const ir::Node& node,
                                 Operands operands) {
  const BlocksOfRows of = BlocksOfRows::Of(OpCall::Of(from, node));
  return Values{OnlyRows(b, RowsOfBlocks(b, operands[1], of.size, of.blocks),
                         RowsForBlocks(b, operands[0], of.dim, of.blocks), of.dim)};
}

ValuesOrStatus RowsTogetherByBlocks(Builder& b, const ir::Graph& from, const ir::Node& node,
                                    Operands operands) {
  const BlocksOfRows of = BlocksOfRows::Of(OpCall::Of(from, node));
  const ir::ValueId mask = RowsOfBlocks(b, operands[1], of.size, of.blocks);
  return Values{SumOfBlocks(b, OnlyRows(b, mask, operands[0], of.dim), of.dim, of.blocks)};
}

static Attributes PartAttributes(const TensorType& self, bool may_be_negative, int dim,
                                 int64_t blocks) {
  return {{"first", std::vector<int64_t>(self.rank(), 0)},
          {"size", std::vector<int64_t>(self.dims.begin(), self.dims.end())},
          {"may_be_negative", may_be_negative},
          {"dim", static_cast<int64_t>(dim)},
          {"blocks", blocks}};
}

ir::ValueId ReadRows(Builder& b, ir::ValueId self, absl::Span<const ir::ValueId> indices,
                     bool may_be_negative, int dim, int64_t blocks) {
  std::vector<ir::ValueId> call = {self};
  call.insert(call.end(), indices.begin(), indices.end());
  return b.CallAll("spmd::index_rows", std::move(call),
                   PartAttributes(b.type(self), may_be_negative, dim, blocks),
                   {{1, static_cast<int>(indices.size())}})[0];
}

ir::ValueId WriteRows(Builder& b, ir::ValueId self, absl::Span<const ir::ValueId> indices,
                      ir::ValueId values, bool accumulate, bool may_be_negative, int dim,
                      int64_t blocks) {
  std::vector<ir::ValueId> call = {self};
  call.insert(call.end(), indices.begin(), indices.end());
  call.push_back(values);
  Attributes attributes = PartAttributes(b.type(self), may_be_negative, dim, blocks);
  attributes.Set("accumulate", accumulate);
  return b.CallAll("spmd::index_put_rows", std::move(call), std::move(attributes),
                   {{1, static_cast<int>(indices.size())}})[0];
}

ir::ValueId RowsApart(Builder& b, ir::ValueId value, ir::ValueId list, const BlocksOfRows& of) {
  return b.Call("spmd::rows_apart", {value, list},
                {{"dim", static_cast<int64_t>(of.dim)}, {"size", of.size}, {"blocks", of.blocks}});
}

ir::ValueId RowsOfBlocks(Builder& b, ir::ValueId list, int64_t size, int64_t blocks) {
  const int64_t n = b.type(list).dims[0];
  list = b.Cast(list, DType::kI64);
  const ir::ValueId negative = b.Call("aten::lt.Scalar", {list}, {{"other", int64_t{0}}});
  const ir::ValueId index = b.Where(negative, b.AddScalar(list, static_cast<double>(size)), list);
  const ir::ValueId length = b.Constant(static_cast<double>(size / blocks), DType::kI64);
  const ir::ValueId block = b.Call("aten::floor_divide", {index, length});
  const ir::ValueId belongs =
      b.Call("aten::eq.Tensor", {b.View(block, {1, n}), b.Iota(blocks, 0, 2)});
  return b.View(belongs, {blocks * n});
}

ir::ValueId OnlyRows(Builder& b, ir::ValueId mask, ir::ValueId value, int dim) {
  std::vector<int64_t> size(b.rank(value), 1);
  size[dim] = b.type(value).dims[dim];
  return b.Where(b.View(mask, std::move(size)), value, b.Constant(0, b.type(value).dtype));
}

ir::ValueId SumOfBlocks(Builder& b, ir::ValueId value, int dim, int64_t blocks) {
  const TensorType type = b.type(value);
  std::vector<int64_t> apart(type.dims.begin(), type.dims.end());
  apart[dim] /= blocks;
  apart.insert(apart.begin() + dim, blocks);
  const ir::ValueId sum = b.Sum(b.View(value, std::move(apart)), {dim}, /*keepdim=*/false);
  return b.Cast(sum, type.dtype);
}

ir::ValueId RowsForBlocks(Builder& b, ir::ValueId value, int dim, int64_t blocks) {
  const Dims dims = b.type(value).dims;
  std::vector<int64_t> size(dims.begin(), dims.end());
  size.insert(size.begin() + dim, blocks);
  const ir::ValueId one = b.Call("aten::unsqueeze", {value}, {{"dim", static_cast<int64_t>(dim)}});
  const ir::ValueId all = b.Call("aten::expand", {one}, {{"size", size}, {"implicit", false}});
  size.erase(size.begin() + dim);
  size[dim] *= blocks;
  return b.View(all, std::move(size));
}

}  // namespace spmd::rules
