// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/axes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

std::vector<int> Identity(int rank) {
  std::vector<int> source(rank);
  std::iota(source.begin(), source.end(), 0);
  return source;
}

int Wrap(const OpCall& call, int64_t dim, int rank) {
  return static_cast<int>(call.Wrapped(dim, "dim", rank));
}

std::vector<int> Without(int rank, const std::vector<int>& dropped) {
  std::vector<int> source;
  for (int d = 0; d < rank; ++d) {
    if (std::count(dropped.begin(), dropped.end(), d) == 0) source.push_back(d);
  }
  return source;
}

std::vector<int> SqueezeSome(const OpCall& call, const std::vector<int64_t>& dims) {
  const TensorType& type = call.operand(0);
  std::vector<int> dropped;
  for (int64_t dim : dims) {
    const int d = Wrap(call, dim, type.rank());
    if (d < type.rank() && type.dims[d] == 1) dropped.push_back(d);
  }
  return Without(type.rank(), dropped);
}

}  // namespace

std::vector<int> PermuteSource(const OpCall& call) {
  const int rank = call.operand(0).rank();
  std::vector<int> source;
  for (int64_t d : call.attrs().GetInts("dims")) source.push_back(Wrap(call, d, rank));
  return source;
}

std::vector<int> TransposeSource(const OpCall& call) {
  const int rank = call.operand(0).rank();
  std::vector<int> source = Identity(rank);
  if (rank > 0) std::swap(source[call.Dim("dim0", rank)], source[call.Dim("dim1", rank)]);
  return source;
}

std::vector<int> TSource(const OpCall& call) {
  std::vector<int> source = Identity(call.operand(0).rank());
  std::reverse(source.begin(), source.end());
  return source;
}

std::vector<int> SqueezeSource(const OpCall& call) {
  std::vector<int64_t> all(call.operand(0).rank());
  std::iota(all.begin(), all.end(), 0);
  return SqueezeSome(call, all);
}

std::vector<int> SqueezeDimSource(const OpCall& call) {
  return SqueezeSome(call, {call.attrs().GetInt("dim")});
}

std::vector<int> SqueezeDimsSource(const OpCall& call) {
  return SqueezeSome(call, call.attrs().GetInts("dim"));
}

std::vector<int> UnsqueezeSource(const OpCall& call) {
  const int rank = call.operand(0).rank();
  std::vector<int> source = Identity(rank);
  source.insert(source.begin() + call.Dim("dim", rank + 1), kRepeated);
  return source;
}

std::vector<int> ExpandSource(const OpCall& call) {
  const int added = static_cast<int>(call.attrs().GetInts("size").size()) - call.operand(0).rank();
  std::vector<int> source(std::max(added, 0), kRepeated);
  for (int d = 0; d < call.operand(0).rank(); ++d) source.push_back(d);
  return source;
}

std::vector<int> SelectSource(const OpCall& call) {
  const int rank = call.operand(0).rank();
  return Without(rank, {static_cast<int>(call.Dim("dim", rank))});
}

std::vector<int> DiagonalSource(const OpCall& call) {
  const int rank = call.operand(0).rank();
  std::vector<int> source = Without(
      rank, {static_cast<int>(call.Dim("dim1", rank)), static_cast<int>(call.Dim("dim2", rank))});
  source.push_back(kMade);
  return source;
}

std::vector<int> DiagEmbedSource(const OpCall& call) {
  const int rank = call.operand(0).rank() + 1;
  const int64_t dim1 = call.Dim("dim1", rank), dim2 = call.Dim("dim2", rank);
  std::vector<int> source;
  int next = 0;
  for (int d = 0; d < rank; ++d) source.push_back(d == dim1 || d == dim2 ? kMade : next++);
  return source;
}

std::vector<int> ViewAsRealSource(const OpCall& call) {
  std::vector<int> source = Identity(call.operand(0).rank());
  source.push_back(kMade);
  return source;
}

std::vector<int> ViewAsComplexSource(const OpCall& call) {
  return Identity(call.operand(0).rank() - 1);
}

absl::StatusOr<std::vector<TensorType>> ExpandTypes(const OpCall& call) {
  const TensorType& from = call.operand(0);
  const std::vector<int64_t>& size = call.attrs().GetInts("size");
  const std::vector<int> source = ExpandSource(call);
  if (source.size() != size.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call.ToString(), ": the size has fewer dimensions than the tensor"));
  }
  Dims dims;
  for (size_t d = 0; d < size.size(); ++d) {
    const int64_t had = source[d] >= 0 ? from.dims[source[d]] : 1;
    if (size[d] != -1 && had != 1 && had != size[d]) {
      return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": dimension ", d,
                                                     " of size ", had, " expands to ", size[d],
                                                     "; only size 1 does"));
    }
    dims.push_back(size[d] == -1 ? had : size[d]);
  }
  return std::vector<TensorType>{{from.dtype, std::move(dims)}};
}

absl::StatusOr<OpFactors> RepeatFactors(const OpCall& call) {
  CallFactors f(call);
  const TensorType& from = call.operand(0);
  const TensorType& to = call.results[0];
  const int added = to.rank() - from.rank();
  for (int d = 0; d < to.rank(); ++d) {
    const int64_t n = d >= added ? from.dims[d - added] : 1;
    f.OverResult(d, f.Add(n == 0 ? 1 : to.dims[d] / n));
    if (d < added) continue;
    const int indices = f.Add(n);
    f.OverOperand(0, d - added, indices);
    f.OverResult(d, indices);
  }
  return f.Take();
}

Attributes LocalRepeats(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  const std::vector<int64_t>& repeats = call.attrs().GetInts("repeats");
  const int added = static_cast<int>(repeats.size()) - call.operand(0).rank();
  std::vector<Expr> local;
  for (int d = 0; d < static_cast<int>(repeats.size()); ++d) {
    if (!IsCut(factors.results[0][d], cut)) {
      local.push_back(repeats[d]);
    } else if (d < added) {
      local.push_back(Expr::Size(Result(0), d));
    } else {
      // If n is sharded, r is split down to single copies and both tiles have the same size.
      local.push_back(FloorDiv(Expr::Size(Result(0), d), Expr::Size(Operand(0), d - added)));
    }
  }
  Attributes attributes = call.attrs();
  attributes.Set("repeats", ToAttr(local));
  return attributes;
}

namespace {

// Operand `reduced` has the dims of the result except dim1 and dim2, followed by the diagonal.
absl::StatusOr<OpFactors> DiagonalInverse(const OpCall& call, int reduced, bool full_operand) {
  CallFactors f(call);
  const Dims& dims = call.results[0].dims;
  const int rank = call.results[0].rank();
  const int64_t dim1 = call.Dim("dim1", rank), dim2 = call.Dim("dim2", rank);
  int next = 0;
  for (int d = 0; d < rank; ++d) {
    const bool diagonal = d == dim1 || d == dim2;
    const int factor = diagonal ? f.AddWhole(dims[d]) : f.Add(dims[d]);
    f.OverResult(d, factor);
    if (full_operand) f.OverOperand(0, d, factor);
    if (!diagonal) f.OverOperand(reduced, next++, factor);
  }
  f.OverOperand(reduced, next, f.AddWhole(call.operand(reduced).dims[next]));
  return f.Take();
}

}  // namespace

absl::StatusOr<OpFactors> DiagonalBackwardFactors(const OpCall& call) {
  return DiagonalInverse(call, /*reduced=*/0, /*full_operand=*/false);
}

absl::StatusOr<OpFactors> DiagonalScatterFactors(const OpCall& call) {
  return DiagonalInverse(call, /*reduced=*/1, /*full_operand=*/true);
}

}  // namespace spmd::rules
