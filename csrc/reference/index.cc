// SPDX-License-Identifier: Apache-2.0
// Ops that index some dimensions of a tensor with tensors, as NumPy's brackets do.
#include <algorithm>
#include <utility>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// The dimensions of self[indices]. If the indexed dimensions are adjacent, the dims of the indices
// take their place; else they come first.
struct Indexed {
  Dims self;
  std::vector<int> kept, replaced;      // dimensions of self
  std::vector<const Literal*> indices;  // by dimension; null where it is kept
  Dims places;                          // the dims that the indices broadcast to
  size_t lead = 0;                      // number of kept dimensions before the indices
  Dims dims;                            // those of the result

  // Operands 1 to `count` are the indices.
  static absl::StatusOr<Indexed> Of(const OpArgs& args, int count) {
    Indexed x;
    SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
    x.self = in->type.dims;
    const int rank = in->type.rank();
    if (count > rank) return args.Error("there are more indices than dimensions");
    std::vector<Dims> shapes;
    for (int d = 0; d < rank; ++d) {
      x.indices.push_back(d < count ? args.optional(d + 1) : nullptr);
      (x.indices[d] == nullptr ? x.kept : x.replaced).push_back(d);
      if (x.indices[d] == nullptr) continue;
      const DType dtype = x.indices[d]->type.dtype;
      if (dtype == DType::kBool || dtype == DType::kU8) return args.Error("an index is a mask");
      shapes.push_back(x.indices[d]->type.dims);
    }
    const std::optional<Dims> places = BroadcastDims(shapes);
    if (!places || x.replaced.empty()) return args.Error("the indices do not broadcast");
    x.places = *places;
    const int wide = static_cast<int>(x.replaced.size());
    const bool adjacent = x.replaced.back() - x.replaced.front() + 1 == wide;
    x.lead = adjacent ? x.replaced.front() : 0;
    const size_t inner = x.places.size();
    x.dims.resize(x.kept.size() + inner);
    for (size_t i = 0; i < x.kept.size(); ++i) {
      x.dims[i < x.lead ? i : i + inner] = x.self[x.kept[i]];
    }
    std::copy(x.places.begin(), x.places.end(), x.dims.begin() + x.lead);
    return x;
  }

  // The index into self of element `at` of the result. Indexed dimensions have the indices' values,
  // which may be negative.
  Dims From(const Dims& at) const {
    const size_t inner = places.size();
    Dims from(self.size());
    for (size_t i = 0; i < kept.size(); ++i) from[kept[i]] = at[i < lead ? i : i + inner];
    const auto place = absl::MakeConstSpan(at).subspan(lead, inner);
    for (int d : replaced) {
      from[d] =
          static_cast<int64_t>(indices[d]->data[RavelBroadcast(place, indices[d]->type.dims)]);
    }
    return from;
  }

  // The same as a linear index, where negative values count from the end; -2 outside of self.
  int64_t Linear(const Dims& at) const {
    Dims from = From(at);
    for (int d : replaced) {
      if (from[d] < 0) from[d] += self[d];
      if (from[d] < 0 || from[d] >= self[d]) return -2;
    }
    return Ravel(from, self);
  }
};

absl::StatusOr<Literals> Index(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Indexed x, Indexed::Of(args, args.num_operands() - 1));
  return One(Gather(args, *in, x.dims, [&](const Dims& at) { return x.Linear(at); }));
}

// The part of the indexed dimensions that a tile holds.
struct IndexedPart {
  std::vector<int64_t> first, size;
  bool may_be_negative = false;

  static absl::StatusOr<IndexedPart> Of(const OpArgs& args, const Indexed& x) {
    IndexedPart part{args.Offsets("first"), args.Offsets("size"),
                     args.BoolOr("may_be_negative", false)};
    if (part.first.size() == x.self.size() && part.size.size() == x.self.size()) return part;
    return args.Error("the parts of the dimensions are not known");
  }
  // As Indexed::Linear; -1 for elements that another tile holds.
  int64_t Linear(const Indexed& x, const Dims& at) const {
    Dims from = x.From(at);
    for (int d : x.replaced) {
      if (may_be_negative && from[d] < 0) from[d] += size[d];
      from[d] -= first[d];
      if (from[d] < 0 || from[d] >= x.self[d]) return -1;
    }
    return Ravel(from, x.self);
  }
};

// Elements that another tile holds are zeros.
absl::StatusOr<Literals> IndexPart(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Indexed x, Indexed::Of(args, args.num_operands() - 1));
  SPMD_ASSIGN_OR_RETURN(const IndexedPart part, IndexedPart::Of(args, x));
  return One(Gather(args, *in, x.dims, [&](const Dims& at) { return part.Linear(x, at); }));
}

// `self` with `values`, broadcast to self[indices], written or added where `place` says: at a
// linear index of self, nowhere (-1), or out of range (-2, an error). If several are written to one
// element, the last one stays.
template <typename Place>
absl::StatusOr<Literals> Put(const OpArgs& args, const Indexed& x, const Place& place) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* from, args.operand(args.num_operands() - 1));
  if (BroadcastDims({from->type.dims, x.dims}) != x.dims) {
    return args.Error("the values do not broadcast to the places");
  }
  const bool accumulate = args.BoolOr("accumulate", false);
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, x.self));
  out.data = in->data;
  SPMD_RETURN_IF_ERROR(args.CheckWork(static_cast<double>(NumElements(x.dims))));
  for (int64_t i = 0, count = NumElements(x.dims); i < count; ++i) {
    const Dims at = Unravel(i, x.dims);
    const int64_t to = place(at);
    if (to == -1) continue;
    if (to < 0) return args.Error("an index is out of range");
    const double value = from->data[RavelBroadcast(at, from->type.dims)];
    out.data[to] = accumulate ? out.data[to] + value : value;
  }
  return One(std::move(out));
}

absl::StatusOr<Literals> IndexPut(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Indexed x, Indexed::Of(args, args.num_operands() - 2));
  return Put(args, x, [&](const Dims& at) { return x.Linear(at); });
}

absl::StatusOr<Literals> IndexPutPart(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Indexed x, Indexed::Of(args, args.num_operands() - 2));
  SPMD_ASSIGN_OR_RETURN(const IndexedPart part, IndexedPart::Of(args, x));
  return Put(args, x, [&](const Dims& at) { return part.Linear(x, at); });
}

constexpr KernelRow kIndexKernels[] = {
    {"aten::_index_put_impl", IndexPut},    {"aten::_unsafe_index.Tensor", Index},
    {"aten::_unsafe_index_put", IndexPut},  {"aten::index.Tensor", Index},
    {"aten::index_put", IndexPut},          {"spmd::index_part", IndexPart},
    {"spmd::index_put_part", IndexPutPart},
};
static_assert(SortedByOp(kIndexKernels));

}  // namespace

absl::Span<const KernelRow> IndexKernels() { return kIndexKernels; }

}  // namespace spmd::reference
