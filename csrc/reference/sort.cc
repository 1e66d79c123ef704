// SPDX-License-Identifier: Apache-2.0
// Ops that order the elements along a dimension.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// NaN is greater than any number, as in PyTorch.
bool Less(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

// The first `count` elements of every line along `dim` in order, and their indices. The sort is
// stable.
absl::StatusOr<Literals> Ordered(const OpArgs& args, const Literal& in, int dim, int64_t count,
                                 bool descending) {
  Dims dims = in.type.dims;
  const int64_t length = dims.empty() ? 1 : dims[dim];
  if (count < 0 || count > length) return args.Error("there are not as many elements");
  int64_t inner = 1;
  for (size_t d = dim + 1; d < dims.size(); ++d) inner *= dims[d];
  if (!dims.empty()) dims[dim] = count;
  SPMD_ASSIGN_OR_RETURN(Literal values, args.Make(0, dims));
  SPMD_ASSIGN_OR_RETURN(Literal indices, args.Make(1, dims));
  const int64_t lines = length == 0 ? 0 : static_cast<int64_t>(in.data.size()) / length;
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t outer = line / inner, rest = line % inner;
    const auto at = [&](int64_t i) { return in.data[(outer * length + i) * inner + rest]; };
    std::vector<int64_t> order(length);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return descending ? Less(at(b), at(a)) : Less(at(a), at(b));
    });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t to = (outer * count + i) * inner + rest;
      values.data[to] = at(order[i]);
      indices.data[to] = static_cast<double>(order[i]);
    }
  }
  return Literals{std::move(values), std::move(indices)};
}

absl::StatusOr<Literals> Sort(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim(args.IntOr("dim", -1), in->type.rank()));
  const int64_t length = in->type.rank() == 0 ? 1 : in->type.dims[dim];
  return Ordered(args, *in, dim, length, args.BoolOr("descending", false));
}

absl::StatusOr<Literals> TopK(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim(args.IntOr("dim", -1), in->type.rank()));
  return Ordered(args, *in, dim, args.Int("k"), args.BoolOr("largest", true));
}

constexpr KernelRow kSortKernels[] = {
    {"aten::sort", Sort}, {"aten::sort.stable", Sort}, {"aten::topk", TopK}};
static_assert(SortedByOp(kSortKernels));

}  // namespace

absl::Span<const KernelRow> SortKernels() { return kSortKernels; }

}  // namespace spmd::reference
