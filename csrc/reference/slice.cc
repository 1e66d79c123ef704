// SPDX-License-Identifier: Apache-2.0
// Ops that take a range of rows, write one, pad or concatenate.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// The rows start, start+step, … of one dimension, `count` of them.
struct Range {
  int dim = 0;
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};

absl::StatusOr<Range> SliceRange(const OpArgs& args, absl::Span<const int64_t> dims) {
  const int rank = static_cast<int>(dims.size());
  if (rank == 0) return args.Error("slices a tensor of rank 0");
  Range range;
  SPMD_ASSIGN_OR_RETURN(range.dim, args.Dim(args.IntOr("dim", 0), rank));
  const int64_t size = dims[range.dim];
  const auto bound = [size](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  range.start = bound(args.IntOr("start", 0));
  range.step = args.IntOr("step", 1);
  if (range.step < 1) return args.Error("step must be at least 1");
  const int64_t end = bound(args.IntOr("end", kEnd));
  range.count = end > range.start ? (end - range.start - 1) / range.step + 1 : 0;
  return range;
}

// `count` rows from the run-time start. The start comes from the user, so it is checked as
// torch.narrow does.
absl::StatusOr<Range> StartRange(const OpArgs& args, absl::Span<const int64_t> dims,
                                 int64_t count) {
  const int rank = static_cast<int>(dims.size());
  if (rank == 0) return args.Error("slices a tensor of rank 0");
  Range range;
  SPMD_ASSIGN_OR_RETURN(range.dim, args.Dim("dim", rank));
  range.start = args.Int("start");
  if (range.start < 0) range.start += dims[range.dim];
  range.count = count;
  if (range.start < 0 || count < 0 || count > dims[range.dim] - range.start) {
    return args.Error(
        absl::StrCat("start ", range.start, " and length ", count, " of ", dims[range.dim]));
  }
  return range;
}

absl::StatusOr<Literals> TakeRange(const OpArgs& args, const Literal& in, const Range& range) {
  Dims dims = in.type.dims;
  dims[range.dim] = range.count;
  return One(Gather(args, in, dims, [&](const Dims& index) {
    Dims from = index;
    from[range.dim] = range.start + index[range.dim] * range.step;
    return Ravel(from, in.type.dims);
  }));
}

// `into` with the rows of the range replaced by `src`; a null `into` means zeros of `dims`.
absl::StatusOr<Literals> PutRange(const OpArgs& args, const Literal* into,
                                  absl::Span<const int64_t> dims, const Literal& src,
                                  const Range& range) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  if (into != nullptr) out.data = into->data;
  Dims part(dims.begin(), dims.end());
  part[range.dim] = range.count;
  if (src.type.dims != part) {
    return args.Error(
        absl::StrCat("the source is ", src.type.ToString(), ", expected ", DimsToString(part)));
  }
  for (size_t i = 0; i < src.data.size(); ++i) {
    Dims index = Unravel(static_cast<int64_t>(i), part);
    index[range.dim] = range.start + index[range.dim] * range.step;
    out.data[Ravel(index, dims)] = src.data[i];
  }
  return One(std::move(out));
}

absl::StatusOr<Literals> Slice(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Range range, SliceRange(args, in->type.dims));
  return TakeRange(args, *in, range);
}

absl::StatusOr<Literals> SliceScatter(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* src, args.operand(1));
  SPMD_ASSIGN_OR_RETURN(const Range range, SliceRange(args, in->type.dims));
  return PutRange(args, in, in->type.dims, *src, range);
}

absl::StatusOr<Literals> SliceBackward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  const std::vector<int64_t> sizes = args.Ints("input_sizes");
  SPMD_ASSIGN_OR_RETURN(const Range range, SliceRange(args, sizes));
  return PutRange(args, nullptr, sizes, *grad, range);
}

absl::StatusOr<Literals> SliceStart(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Range range, StartRange(args, in->type.dims, args.Int("length")));
  return TakeRange(args, *in, range);
}

absl::StatusOr<Literals> SliceStartScatter(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* src, args.operand(1, in->type.rank()));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank()));
  const int64_t count = in->type.rank() == 0 ? 0 : src->type.dims[dim];
  SPMD_ASSIGN_OR_RETURN(const Range range, StartRange(args, in->type.dims, count));
  return PutRange(args, in, in->type.dims, *src, range);
}

absl::StatusOr<Literals> RollStart(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* beside, args.operand(1, in->type.rank()));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank()));
  const int64_t size = args.Int("size"), length = in->type.dims[dim];
  int64_t shift = (args.Int("shift") % size + size) % size;
  if (shift > size / 2) shift -= size;
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, in->type.dims));
  for (size_t i = 0; i < out.data.size(); ++i) {
    Dims index = Unravel(static_cast<int64_t>(i), in->type.dims);
    int64_t& row = index[dim];
    row -= shift;
    const bool within = length == size || (row >= 0 && row < length);
    if (within) {
      row = (row + length) % length;
    } else {
      row += row < 0 ? beside->type.dims[dim] : -length;
    }
    const Literal& from = within ? *in : *beside;
    out.data[i] = from.data[Ravel(index, from.type.dims)];
  }
  return One(std::move(out));
}

// For each element of a slice of `dims` that the part `held` of it has, calls put(place in the
// slice, place in the part).
template <typename Put>
absl::Status ForEachHeld(const OpArgs& args, const Dims& held, const Dims& dims, Put put) {
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", static_cast<int>(held.size())));
  const int64_t shift = args.Int("start") - args.Int("first");
  int64_t count = 1;
  for (const int64_t n : dims) count *= n;
  for (int64_t i = 0; i < count; ++i) {
    Dims index = Unravel(i, dims);
    index[dim] += shift;
    if (index[dim] >= 0 && index[dim] < held[dim]) put(i, Ravel(index, held));
  }
  return absl::OkStatus();
}

absl::StatusOr<Literals> SlicePart(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank()));
  Dims dims = in->type.dims;
  dims[dim] = args.Int("length");
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  SPMD_RETURN_IF_ERROR(ForEachHeld(args, in->type.dims, dims,
                                   [&](int64_t i, int64_t from) { out.data[i] = in->data[from]; }));
  return One(std::move(out));
}

absl::StatusOr<Literals> SlicePutPart(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* src, args.operand(1, in->type.rank()));
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, in->type.dims));
  out.data = in->data;
  SPMD_RETURN_IF_ERROR(ForEachHeld(args, in->type.dims, src->type.dims,
                                   [&](int64_t i, int64_t to) { out.data[to] = src->data[i]; }));
  return One(std::move(out));
}

// The row `index` of dimension `dim`.
absl::StatusOr<Range> SelectRange(const OpArgs& args, absl::Span<const int64_t> dims) {
  const int rank = static_cast<int>(dims.size());
  if (rank == 0) return args.Error("selects from a tensor of rank 0");
  Range range;
  SPMD_ASSIGN_OR_RETURN(range.dim, args.Dim("dim", rank));
  const int64_t at = args.Int("index");
  range.start = at < 0 ? at + dims[range.dim] : at;
  range.count = 1;
  if (range.start < 0 || range.start >= dims[range.dim]) {
    return args.Error(absl::StrCat("index ", at, " of ", dims[range.dim]));
  }
  return range;
}

absl::StatusOr<Literals> Select(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Range range, SelectRange(args, in->type.dims));
  Dims dims = in->type.dims;
  dims.erase(dims.begin() + range.dim);
  return One(Gather(args, *in, dims, [&](const Dims& index) {
    Dims from = index;
    from.insert(from.begin() + range.dim, range.start);
    return Ravel(from, in->type.dims);
  }));
}

absl::StatusOr<Literals> SelectScatter(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* src, args.operand(1));
  SPMD_ASSIGN_OR_RETURN(const Range range, SelectRange(args, in->type.dims));
  return PutRange(args, in, in->type.dims, WithOne(*src, range.dim), range);
}

absl::StatusOr<Literals> SelectBackward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  const std::vector<int64_t> sizes = args.Ints("input_sizes");
  SPMD_ASSIGN_OR_RETURN(const Range range, SelectRange(args, sizes));
  return PutRange(args, nullptr, sizes, WithOne(*grad, range.dim), range);
}

// Concatenates `parts` along `dim`.
absl::StatusOr<Literals> Joined(const OpArgs& args, std::vector<Literal> parts, int dim) {
  if (parts.empty() || parts[0].type.rank() == 0) return args.Error("nothing to join");
  Dims dims = parts[0].type.dims;
  dims[dim] = 0;
  for (const Literal& part : parts) {
    Dims other = part.type.dims;
    if (other.size() != dims.size()) return args.Error("operands of different ranks");
    dims[dim] += other[dim];
    other[dim] = dims[dim];
    if (other != dims) return args.Error("operands of different sizes");
  }
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  int64_t begin = 0;
  for (const Literal& part : parts) {
    for (size_t i = 0; i < part.data.size(); ++i) {
      Dims index = Unravel(static_cast<int64_t>(i), part.type.dims);
      index[dim] += begin;
      out.data[Ravel(index, dims)] = part.data[i];
    }
    begin += part.type.dims[dim];
  }
  return One(std::move(out));
}

absl::StatusOr<Literals> Cat(const OpArgs& args) {
  std::vector<Literal> parts;
  for (int k = 0; k < args.num_operands(); ++k) {
    SPMD_ASSIGN_OR_RETURN(const Literal* part, args.operand(k));
    // PyTorch skips empty vectors, whatever the rank of the others.
    if (part->type.dims != Dims{0}) parts.push_back(*part);
  }
  if (parts.empty()) return args.Error("nothing to join");
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim(args.IntOr("dim", 0), parts[0].type.rank()));
  return Joined(args, std::move(parts), dim);
}

absl::StatusOr<Literals> Stack(const OpArgs& args) {
  std::vector<Literal> parts;
  int dim = 0;
  for (int k = 0; k < args.num_operands(); ++k) {
    SPMD_ASSIGN_OR_RETURN(const Literal* part, args.operand(k));
    SPMD_ASSIGN_OR_RETURN(dim, args.Dim(args.IntOr("dim", 0), part->type.rank() + 1));
    parts.push_back(WithOne(*part, dim));
  }
  return Joined(args, std::move(parts), dim);
}

// pad: (before, after) of the last dimension, then of the one before it, …; negative numbers crop.
absl::StatusOr<Literals> Pad(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  const std::vector<int64_t> pad = args.Ints("pad");
  const int rank = in->type.rank();
  if (pad.size() % 2 != 0 || static_cast<int>(pad.size()) / 2 > rank) return args.Error("bad pad");
  Dims dims = in->type.dims;
  Dims before(rank, 0);
  for (size_t k = 0; k < pad.size() / 2; ++k) {
    const auto [low, high] = std::minmax(pad[2 * k], pad[2 * k + 1]);
    if (low < -kMaxLiteralElements || high > kMaxLiteralElements) return args.Error("bad pad");
    dims[rank - 1 - k] += pad[2 * k] + pad[2 * k + 1];
    before[rank - 1 - k] = pad[2 * k];
  }
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  const double fill = args.DoubleOr("value", 0);
  for (size_t i = 0; i < out.data.size(); ++i) {
    Dims from = Unravel(static_cast<int64_t>(i), dims);
    bool inside = true;
    for (int d = 0; d < rank; ++d) {
      from[d] -= before[d];
      inside = inside && from[d] >= 0 && from[d] < in->type.dims[d];
    }
    out.data[i] = inside ? in->data[Ravel(from, in->type.dims)] : fill;
  }
  return One(std::move(out));
}

constexpr KernelRow kSliceKernels[] = {
    {"aten::cat", Cat},
    {"aten::constant_pad_nd", Pad},
    {"aten::select.int", Select},
    {"aten::select_backward", SelectBackward},
    {"aten::select_scatter", SelectScatter},
    {"aten::slice.Tensor", Slice},
    {"aten::slice_backward", SliceBackward},
    {"aten::slice_scatter", SliceScatter},
    {"aten::stack", Stack},
    {"spmd::roll_start", RollStart},
    {"spmd::slice_part", SlicePart},
    {"spmd::slice_put_part", SlicePutPart},
    {"spmd::slice_start", SliceStart},
    {"spmd::slice_start_scatter", SliceStartScatter},
};
static_assert(SortedByOp(kSliceKernels));

}  // namespace

absl::Span<const KernelRow> SliceKernels() { return kSliceKernels; }

}  // namespace spmd::reference
