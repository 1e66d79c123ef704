// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/sliding.h"

#include <algorithm>
#include <utility>

#include "csrc/util/status.h"

namespace spmd::rules {

ExprInterval Sliding::InputsOf(const ExprInterval& outputs) const {
  return {outputs.begin * stride - padding,
          outputs.end * stride + CheckedSub(CheckedSub(span(), stride), padding)};
}

ExprInterval Sliding::OutputsOf(const ExprInterval& inputs) const {
  Expr begin = CeilDiv(inputs.begin + CheckedAdd(CheckedSub(padding, span()), 1), stride);
  if (span() < stride) begin = Min(begin, FloorDiv(inputs.begin + padding, stride));
  return {begin, FloorDiv(inputs.end + CheckedSub(padding, 1), stride) + 1};
}

Expr Sliding::OffsetWithin(const ExprInterval& inputs) const {
  if (stride == 1) return CheckedSub(span(), 1);
  return inputs.begin + padding - OutputsOf(inputs).begin * stride;
}

int64_t SpatialEntry(const OpCall& call, absl::string_view name, int i, int64_t fallback) {
  const std::vector<int64_t> list = call.attrs().GetIntsOr(name, {});
  if (list.empty()) return fallback;
  return list.size() == 1 ? list[0] : list[i];
}

Attr LocalPadding(const OpCall& call, const OpFactors& factors, const CutFactors& cut, int operand,
                  int rank) {
  std::vector<int64_t> padding;
  const int first = call.operand(operand).rank() - rank;
  for (int i = 0; i < rank; ++i) {
    const bool windowed = IsWindowed(factors, cut, operand, first + i);
    padding.push_back(windowed ? 0 : SpatialEntry(call, "padding", i, 0));
  }
  return padding;
}

Sliding PoolOf(const OpCall& call, int i) {
  const int64_t kernel = SpatialEntry(call, "kernel_size", i, 1);
  return {kernel, SpatialEntry(call, "stride", i, kernel), SpatialEntry(call, "padding", i, 0),
          SpatialEntry(call, "dilation", i, 1)};
}

Attributes PoolLists(const OpCall& call, int rank) {
  std::vector<int64_t> kernel, stride, padding, dilation;
  for (int i = 0; i < rank; ++i) {
    const Sliding pool = PoolOf(call, i);
    kernel.push_back(pool.kernel);
    stride.push_back(pool.stride);
    padding.push_back(pool.padding);
    dilation.push_back(pool.dilation);
  }
  return {
      {"kernel_size", kernel}, {"stride", stride}, {"padding", padding}, {"dilation", dilation}};
}

int PassLeading(CallFactors& f, const OpCall& call, int rank) {
  const int leading = call.operand(0).rank() - rank;
  for (int d = 0; d < leading; ++d) {
    const int factor = f.Add(call.operand(0).dims[d]);
    for (int k = 0; k < static_cast<int>(call.operands.size()); ++k) f.OverOperand(k, d, factor);
    for (int r = 0; r < static_cast<int>(call.results.size()); ++r) f.OverResult(d, factor, r);
  }
  return leading;
}

absl::StatusOr<OpFactors> SpatialWholeFactors(const OpCall& call, int rank) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int d = leading; d < leading + rank; ++d) {
    for (int k = 0; k < static_cast<int>(call.operands.size()); ++k) {
      f.OverOperand(k, d, f.AddWhole(call.operand(k).dims[d]));
    }
    for (int r = 0; r < static_cast<int>(call.results.size()); ++r) {
      f.OverResult(d, f.AddWhole(call.results[r].dims[d]), r);
    }
  }
  return f.Take();
}

std::vector<int64_t> SpatialSizes(const Dims& dims, int rank) {
  return {dims.end() - rank, dims.end()};
}

TensorType WithSpatialSizes(TensorType type, const std::vector<int64_t>& sizes) {
  std::copy(sizes.begin(), sizes.end(), type.dims.end() - static_cast<int64_t>(sizes.size()));
  return type;
}

Attr LocalSpatialSizes(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                       TensorRef tensor, int rank) {
  const bool is_operand = tensor.kind == TensorRef::Kind::kOperand;
  const Dims& dims = is_operand ? call.operand(tensor.index).dims : call.results[tensor.index].dims;
  const TensorFactors& over =
      is_operand ? factors.operands[tensor.index] : factors.results[tensor.index];
  std::vector<Expr> sizes;
  for (int d = static_cast<int>(dims.size()) - rank; d < static_cast<int>(dims.size()); ++d) {
    sizes.push_back(IsCut(over[d], cut) ? Expr::Size(tensor, d) : Expr(dims[d]));
  }
  return ToAttr(sizes);
}

Attributes LocalOutputSize(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                           int rank) {
  Attributes local = call.attrs();
  local.Set("output_size", LocalSpatialSizes(call, factors, cut, Result(0), rank));
  return local;
}

}  // namespace spmd::rules
