// SPDX-License-Identifier: Apache-2.0
// Ops that only rename indices: every element of the result is an element of the operand.
#include <algorithm>
#include <numeric>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// `in` under other dims, in the same row-major order.
absl::StatusOr<Literals> Reshaped(const OpArgs& args, const Literal& in,
                                  absl::Span<const int64_t> dims) {
  if (NumElements(dims) != static_cast<int64_t>(in.data.size())) {
    return args.Error(absl::StrCat(in.type.ToString(), " does not have as many elements as ",
                                   DimsToString(dims)));
  }
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  out.data = in.data;
  return One(std::move(out));
}

absl::StatusOr<Literals> View(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  std::vector<int64_t> dims = args.Ints(args.Has("shape") ? "shape" : "size");
  int64_t known = 1;
  for (int64_t& size : dims) {
    if (size > kMaxLiteralElements || size < -1) return args.Error("a size out of range");
    known = std::min(known * (size < 0 ? 1 : size), kMaxLiteralElements + 1);
  }
  const auto open = std::find(dims.begin(), dims.end(), -1);
  if (open != dims.end() && known > 0) *open = static_cast<int64_t>(in->data.size()) / known;
  if (std::count(dims.begin(), dims.end(), -1) > 0) return args.Error("size -1 is ambiguous");
  return Reshaped(args, *in, dims);
}

absl::StatusOr<Literals> Permuted(const OpArgs& args, const Literal& in,
                                  absl::Span<const int> order) {
  Dims dims;
  for (int d : order) dims.push_back(in.type.dims[d]);
  return One(Gather(args, in, dims, [&](const Dims& index) {
    Dims from(order.size());
    for (size_t d = 0; d < order.size(); ++d) from[order[d]] = index[d];
    return Ravel(from, in.type.dims);
  }));
}

absl::StatusOr<Literals> Permute(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const int rank = in->type.rank();
  std::vector<int> order;
  for (int64_t dim : args.Ints("dims")) {
    SPMD_ASSIGN_OR_RETURN(const int d, args.Dim(dim, rank));
    if (std::count(order.begin(), order.end(), d) > 0) return args.Error("a dimension twice");
    order.push_back(d);
  }
  if (static_cast<int>(order.size()) != rank) return args.Error("dims is no permutation");
  return Permuted(args, *in, order);
}

absl::StatusOr<Literals> Swapped(const OpArgs& args, const Literal& in, int a, int b) {
  std::vector<int> order(in.type.rank());
  std::iota(order.begin(), order.end(), 0);
  if (!order.empty()) std::swap(order[a], order[b]);
  return Permuted(args, in, order);
}

absl::StatusOr<Literals> Transpose(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const int a, args.Dim("dim0", in->type.rank()));
  SPMD_ASSIGN_OR_RETURN(const int b, args.Dim("dim1", in->type.rank()));
  return Swapped(args, *in, a, b);
}

absl::StatusOr<Literals> T(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  if (in->type.rank() < 2) return Reshaped(args, *in, in->type.dims);
  return Swapped(args, *in, 0, 1);
}

absl::StatusOr<Literals> Expand(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const std::vector<int64_t> size = args.Ints("size");
  Dims dims(size.begin(), size.end());
  const int skip = static_cast<int>(dims.size()) - in->type.rank();
  if (skip < 0) return args.Error("expands to a smaller rank");
  for (int d = 0; d < in->type.rank(); ++d) {
    int64_t& to = dims[skip + d];
    if (to == -1) to = in->type.dims[d];
    if (in->type.dims[d] != 1 && in->type.dims[d] != to) return args.Error("does not expand");
  }
  return One(Gather(args, *in, dims,
                    [&](const Dims& index) { return RavelBroadcast(index, in->type.dims); }));
}

absl::StatusOr<Literals> Unsqueeze(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank() + 1));
  return Reshaped(args, *in, WithOne(*in, dim).type.dims);
}

// Drops dimensions of size 1: those that `dim` names, or all.
absl::StatusOr<Literals> Squeeze(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  std::vector<bool> drop(std::max(in->type.rank(), 1), !args.Has("dim"));
  if (args.Has("dim")) {
    for (int64_t dim : args.Ints("dim")) {
      SPMD_ASSIGN_OR_RETURN(const int d, args.Dim(dim, in->type.rank()));
      drop[d] = true;
    }
  }
  Dims dims;
  for (int d = 0; d < in->type.rank(); ++d) {
    if (!drop[d] || in->type.dims[d] != 1) dims.push_back(in->type.dims[d]);
  }
  return Reshaped(args, *in, dims);
}

absl::StatusOr<Literals> Flip(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  std::vector<bool> flipped(std::max(in->type.rank(), 1), false);
  for (int64_t dim : args.Ints("dims")) {
    SPMD_ASSIGN_OR_RETURN(const int d, args.Dim(dim, in->type.rank()));
    flipped[d] = true;
  }
  const Dims& dims = in->type.dims;
  return One(Gather(args, *in, dims, [&](const Dims& index) {
    Dims from = index;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (flipped[d]) from[d] = dims[d] - 1 - index[d];
    }
    return Ravel(from, dims);
  }));
}

absl::StatusOr<Literals> Roll(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const std::vector<int64_t> shifts = args.Ints("shifts");
  const std::vector<int64_t> rolled = args.Ints("dims");
  if (shifts.size() != rolled.size()) return args.Error("as many shifts as dims are needed");
  const Dims& dims = in->type.dims;
  Dims shift(std::max<size_t>(dims.size(), 1), 0);
  for (size_t k = 0; k < rolled.size(); ++k) {
    SPMD_ASSIGN_OR_RETURN(const int d, args.Dim(rolled[k], in->type.rank()));
    if (!dims.empty() && dims[d] > 0) shift[d] = (shift[d] + shifts[k] % dims[d]) % dims[d];
  }
  return One(Gather(args, *in, dims, [&](const Dims& index) {
    Dims from = index;
    for (size_t d = 0; d < dims.size(); ++d)
      from[d] = (index[d] - shift[d] + 2 * dims[d]) % dims[d];
    return Ravel(from, dims);
  }));
}

absl::StatusOr<Literals> Reorder(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank()));
  const std::vector<int64_t> from = args.Ints("index");
  const Dims& dims = in->type.dims;
  if (!from.empty() && static_cast<int64_t>(from.size()) != dims[dim]) {
    return args.Error("an index for each position is needed");
  }
  return One(Gather(args, *in, dims, [&](const Dims& index) -> int64_t {
    if (from.empty()) return Ravel(index, dims);
    Dims source = index;
    source[dim] = from[index[dim]];
    return source[dim] < 0 || source[dim] >= dims[dim] ? -1 : Ravel(source, dims);
  }));
}

// A device's part of a value at the border of a manual region.
absl::StatusOr<Literals> Own(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* const in, args.operand(0));
  return Reshaped(args, *in, in->type.dims);
}

absl::StatusOr<Literals> Repeat(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const std::vector<int64_t> repeats = args.Ints("repeats");
  Dims from = in->type.dims;
  if (repeats.size() < from.size()) return args.Error("fewer repeats than dimensions");
  from.insert(from.begin(), repeats.size() - from.size(), 1);
  Dims dims = from;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (repeats[d] < 0 || repeats[d] > kMaxLiteralElements) return args.Error("bad repeats");
    dims[d] *= repeats[d];
  }
  return One(Gather(args, *in, dims, [&](const Dims& index) {
    Dims at = index;
    for (size_t d = 0; d < at.size(); ++d) at[d] %= from[d];
    return Ravel(at, from);
  }));
}

// Keeps the elements on one side of a diagonal of the last two dimensions.
template <bool upper>
absl::StatusOr<Literals> Triangle(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const Dims& dims = in->type.dims;
  if (dims.size() < 2) return args.Error("expected rank 2 or more");
  const int64_t diagonal = args.IntOr("diagonal", 0);
  return One(Gather(args, *in, dims, [&](const Dims& index) -> int64_t {
    const int64_t above = index[dims.size() - 1] - index[dims.size() - 2];
    const bool kept = upper ? above >= diagonal : above <= diagonal;
    return kept ? Ravel(index, dims) : -1;
  }));
}

constexpr KernelRow kViewKernels[] = {
    {"aten::expand", Expand},
    {"aten::flip", Flip},
    {"aten::permute", Permute},
    {"aten::repeat", Repeat},
    {"aten::roll", Roll},
    {"aten::squeeze", Squeeze},
    {"aten::squeeze.dim", Squeeze},
    {"aten::squeeze.dims", Squeeze},
    {"aten::t", T},
    {"aten::transpose.int", Transpose},
    {"aten::tril", Triangle<false>},
    {"aten::triu", Triangle<true>},
    {"aten::unsqueeze", Unsqueeze},
    {"aten::view", View},
    {"spmd::reorder", Reorder},
    {"spmd::to_global", Own},
    {"spmd::to_local", Own},
};
static_assert(SortedByOp(kViewKernels));

}  // namespace

absl::Span<const KernelRow> ViewKernels() { return kViewKernels; }

}  // namespace spmd::reference
