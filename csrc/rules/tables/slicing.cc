// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/slicing.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// The indices start, start + step, … of a dimension of `extent`, `length` of them.
struct Slice {
  int dim = 0;
  int64_t extent = 0;
  int64_t start = 0;
  int64_t length = 0;
  int64_t step = 1;

  bool IsWhole() const { return start == 0 && length == extent && step == 1; }
};

// Reads "dim", "start", "end" and "step" of a slice of `full` as PyTorch does.
Slice SliceOf(const OpCall& call, const Dims& full) {
  const Attributes& attrs = call.attrs();
  Slice s;
  s.dim = static_cast<int>(call.Dim("dim", static_cast<int>(full.size())));
  s.extent = full[s.dim];
  auto bound = [&](absl::string_view name, int64_t fallback, int64_t low) {
    int64_t i = attrs.GetIntOr(name, fallback);
    if (i < 0) i += s.extent;
    return std::clamp(i, low, s.extent);
  };
  s.step = std::max<int64_t>(attrs.GetIntOr("step", 1), 1);
  s.start = bound("start", 0, 0);
  s.length = CeilDiv(bound("end", s.extent, s.start) - s.start, s.step);
  return s;
}

// The indices of the slice, in [0, length), whose elements lie in `shard` of the sliced dimension.
ExprInterval IndicesWithin(const Slice& s, const ExprInterval& shard) {
  return {Clamp(CeilDiv(shard.begin - s.start, s.step), 0, s.length),
          Clamp(CeilDiv(shard.end - s.start, s.step), 0, s.length)};
}

// Factors of an op that writes operand `part` into a slice of result 0.
OpFactors Scatter(const OpCall& call, int part, bool full_operand) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const Slice s = SliceOf(call, dims);
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    const int factor = f.Add(dims[d]);
    f.OverResult(d, factor);
    if (full_operand) f.OverOperand(0, d, factor);
    if (d != s.dim || s.IsWhole()) {
      f.OverOperand(part, d, factor);
    } else if (s.length > 0) {
      f.OverWindow(part, d, factor, IndicesWithin(s, WindowShard()));
    }
  }
  return f.Take();
}

// Sets "start" and "end" to the part of the slice within a tile of result 0.
void LocaliseScatter(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                     Attributes* local) {
  const Slice s = SliceOf(call, call.results[0].dims);
  if (!IsCut(factors.results[0][s.dim], cut)) return;
  const Expr size = Expr::Size(Result(0), s.dim);
  if (s.IsWhole()) {
    local->Set("start", int64_t{0});
    local->Set("end", size);
    return;
  }
  const ExprInterval shard = ResultShard(s.dim);
  const ExprInterval indices = IndicesWithin(s, shard);
  const Expr start = Clamp(indices.begin * s.step + s.start - shard.begin, 0, size);
  // One past the last index, or `start` if the slice has no index in the tile.
  const Expr end = indices.end * s.step + (s.start - s.step + 1) - shard.begin;
  local->Set("start", start);
  local->Set("end", Max(end, start));
}

bool HasFixedIndex(const OpCall& call) {
  const Attr* index = call.attrs().Find("index");
  return index != nullptr && std::holds_alternative<int64_t>(*index);
}

// Factors of an op that replaces one index of `dim`, which is whole. With a run-time index it has
// no factor at all, since the decomposition could not shard it either.
OpFactors SelectInverse(const OpCall& call, int part, bool full_operand) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const int64_t dim = call.Dim("dim", static_cast<int>(dims.size()));
  for (int d = 0, next = 0; d < static_cast<int>(dims.size()); ++d) {
    if (d == dim && !HasFixedIndex(call)) continue;
    const int factor = d == dim ? f.AddWhole(dims[d]) : f.Add(dims[d]);
    f.OverResult(d, factor);
    if (full_operand) f.OverOperand(0, d, factor);
    if (d != dim) f.OverOperand(part, next++, factor);
  }
  return f.Take();
}

// Sets "start", "end" and "step" to the interval of the one index.
// Errors: a run-time index.
absl::Status IndexAsSlice(const ir::Node& node, int64_t extent, Attributes* attrs) {
  const Attr* index = node.attributes.Find("index");
  if (index == nullptr || !std::holds_alternative<int64_t>(*index)) {
    return absl::UnimplementedError(absl::StrCat(
        node.op, " with an index known at run time cannot be sharded along its dimension"));
  }
  int64_t i = std::get<int64_t>(*index);
  if (i < 0) i += extent;
  SPMD_REQUIRE(i >= 0 && i < extent, "index ", std::get<int64_t>(*index), " of ", extent);
  attrs->Set("start", i);
  attrs->Set("end", i + 1);
  attrs->Set("step", int64_t{1});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpFactors> SliceFactors(const OpCall& call) {
  CallFactors f(call);
  const Slice s = SliceOf(call, call.operand(0).dims);
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    if (d != s.dim || s.IsWhole()) {
      f.Pass(d, d);
      continue;
    }
    if (s.length == 1) {  // too short to shard; one index of the operand is read
      f.OverOperand(0, d, f.AddWhole(s.extent));
      continue;
    }
    const int factor = f.Add(s.length);
    f.OverResult(d, factor);
    if (s.length == 0) continue;
    const ExprInterval shard = WindowShard();
    f.OverWindow(0, d, factor,
                 {shard.begin * s.step + s.start, shard.end * s.step + (s.start - s.step + 1)});
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> SliceTypes(const OpCall& call) {
  TensorType type = call.operand(0);
  const Slice s = SliceOf(call, type.dims);
  type.dims[s.dim] = s.length;
  return std::vector<TensorType>{type};
}

Attributes LocalSlice(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  const Slice s = SliceOf(call, call.operand(0).dims);
  if (!IsCut(factors.results[0][s.dim], cut)) return local;
  local.Set("start", int64_t{0});
  local.Set("end", ToAttr(Expr::Size(Result(0), s.dim) * s.step - (s.step - 1)));
  return local;
}

absl::StatusOr<OpFactors> SliceScatterFactors(const OpCall& call) {
  return Scatter(call, /*part=*/1, /*full_operand=*/true);
}
absl::StatusOr<OpFactors> SliceBackwardFactors(const OpCall& call) {
  return Scatter(call, /*part=*/0, /*full_operand=*/false);
}

Attributes LocalSliceScatter(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  LocaliseScatter(call, factors, cut, &local);
  return local;
}

Attributes LocalSliceBackward(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = WithLocalDims(call, factors, cut, "input_sizes");
  LocaliseScatter(call, factors, cut, &local);
  return local;
}

absl::StatusOr<std::vector<TensorType>> InputSizesTypes(const OpCall& call) {
  const std::vector<int64_t>& sizes = call.attrs().GetInts("input_sizes");
  return std::vector<TensorType>{{call.operand(0).dtype, Dims(sizes.begin(), sizes.end())}};
}

absl::StatusOr<OpFactors> SelectScatterFactors(const OpCall& call) {
  return SelectInverse(call, /*part=*/1, /*full_operand=*/true);
}
absl::StatusOr<OpFactors> SelectBackwardFactors(const OpCall& call) {
  return SelectInverse(call, /*part=*/0, /*full_operand=*/false);
}

absl::StatusOr<std::vector<ir::ValueId>> SelectScatterAsSlice(Builder& b, const ir::Graph& from,
                                                              const ir::Node& node,
                                                              Operands operands) {
  const int64_t dim = OpCall::Of(from, node).Dim("dim", b.rank(operands[0]));
  Attributes attrs = {{"dim", dim}};
  SPMD_RETURN_IF_ERROR(IndexAsSlice(node, b.type(operands[0]).dims[dim], &attrs));
  const ir::ValueId src = b.Call("aten::unsqueeze", {operands[1]}, {{"dim", dim}});
  return std::vector<ir::ValueId>{b.Call("aten::slice_scatter", {operands[0], src}, attrs)};
}

absl::StatusOr<std::vector<ir::ValueId>> SelectBackwardAsSlice(Builder& b, const ir::Graph& from,
                                                               const ir::Node& node,
                                                               Operands operands) {
  const std::vector<int64_t>& sizes = node.attributes.GetInts("input_sizes");
  const int64_t dim = OpCall::Of(from, node).Dim("dim", static_cast<int>(sizes.size()));
  Attributes attrs = {{"input_sizes", sizes}, {"dim", dim}};
  SPMD_RETURN_IF_ERROR(IndexAsSlice(node, sizes[dim], &attrs));
  const ir::ValueId grad = b.Call("aten::unsqueeze", {operands[0]}, {{"dim", dim}});
  return std::vector<ir::ValueId>{b.Call("aten::slice_backward", {grad}, attrs)};
}

absl::StatusOr<OpFactors> SliceStartFactors(const OpCall& call) {
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", call.operand(0).rank());
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    if (d != dim) {
      f.Pass(d, d);
      continue;
    }
    f.OverOperand(0, d, f.AddWhole(call.operand(0).dims[d]));
    f.OverResult(d, f.AddWhole(call.results[0].dims[d]));
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> SliceStartTypes(const OpCall& call) {
  TensorType type = call.operand(0);
  type.dims[call.Dim("dim", type.rank())] = call.attrs().GetInt("length");
  return std::vector<TensorType>{type};
}

absl::StatusOr<OpFactors> SliceStartScatterFactors(const OpCall& call) {
  CallFactors f(call);
  const int64_t dim = call.Dim("dim", call.operand(0).rank());
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    const int64_t size = call.operand(0).dims[d];
    const int factor = d == dim ? f.AddWhole(size) : f.Add(size);
    f.OverOperand(0, d, factor);
    f.OverResult(d, factor);
    f.OverOperand(1, d, d == dim ? f.AddWhole(call.operand(1).dims[d]) : factor);
  }
  return f.Take();
}

}  // namespace spmd::rules
