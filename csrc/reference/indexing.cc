// SPDX-License-Identifier: Apache-2.0
// Ops whose operands hold indices: embeddings, gathers, and the losses over target classes.
#include <algorithm>
#include <cmath>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// 2^48, of which no tensor has an index, in the place of what is larger than that or no number.
int64_t AsIndex(double x) {
  constexpr auto kNone = static_cast<double>(kMaxElements);
  return std::abs(x) <= kNone ? static_cast<int64_t>(x) : kMaxElements;
}

// weight [v, d], indices […] → […, d]. Rows that the tile does not hold give zeros.
absl::StatusOr<Literals> Embedding(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* weight, args.operand(0, 2));
  SPMD_ASSIGN_OR_RETURN(const Literal* indices, args.operand(1));
  const int64_t first = args.Offset("first_row");
  const int64_t rows = weight->type.dims[0];
  Dims dims = indices->type.dims;
  dims.push_back(weight->type.dims[1]);
  return One(Gather(args, *weight, dims, [&](const Dims& index) -> int64_t {
    const auto where = absl::MakeConstSpan(index).subspan(0, index.size() - 1);
    const int64_t row = AsIndex(indices->data[Ravel(where, indices->type.dims)]) - first;
    return row < 0 || row >= rows ? -1 : row * weight->type.dims[1] + index.back();
  }));
}

// grad […, d], indices […] → [num_weights, d].
absl::StatusOr<Literals> EmbeddingBackward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* indices, args.operand(1));
  Dims expected = indices->type.dims;
  if (grad->type.rank() == 0) return args.Error("the gradient has no dimension");
  const int64_t width = grad->type.dims.back();
  expected.push_back(width);
  if (expected != grad->type.dims) return args.Error("gradient and indices do not agree");
  const int64_t first = args.Offset("first_row");
  const int64_t padding = args.IntOr("padding_idx", -1);
  const int64_t rows = args.Int("num_weights");
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, {rows, width}));
  for (size_t i = 0; i < indices->data.size(); ++i) {
    const int64_t index = AsIndex(indices->data[i]);
    const int64_t row = index - first;
    if (index == padding || row < 0 || row >= rows) continue;
    for (int64_t d = 0; d < width; ++d) out.data[row * width + d] += grad->data[i * width + d];
  }
  return One(std::move(out));
}

// The targets of a loss over rows × classes. This call holds the classes [first, first + classes).
struct Targets {
  const Literal* target = nullptr;
  const Literal* weight = nullptr;
  int64_t classes = 0;
  int64_t first = 0;
  int64_t ignored = 0;

  size_t rows() const { return target->data.size(); }
  // The local column of the row's target; -1 where it is ignored or another shard holds it.
  int64_t Column(size_t row) const {
    const int64_t class_index = AsIndex(target->data[row]);
    const int64_t column = class_index - first;
    return class_index == ignored || column < 0 || column >= classes ? -1 : column;
  }
  // The weight of the row's target. The weights are those of the local classes or of all classes.
  double Weight(size_t row) const {
    if (weight == nullptr) return 1;
    const bool local = static_cast<int64_t>(weight->data.size()) == classes;
    const size_t at = AsIndex(target->data[row]) - (local ? first : 0);
    return at < weight->data.size() ? weight->data[at] : 0;
  }
};

absl::StatusOr<Targets> ReadTargets(const OpArgs& args, int target, int weight, int64_t classes) {
  Targets out;
  SPMD_ASSIGN_OR_RETURN(out.target, args.operand(target));
  if (out.target->type.rank() > 1) return args.Error("targets have rank 0 or 1");
  out.weight = args.optional(weight);
  out.classes = classes;
  out.first = args.Offset("first_class");
  out.ignored = args.IntOr("ignore_index", -100);
  return out;
}

// Reads the targets [n] or [] for logp [n, c] or [c].
absl::StatusOr<Targets> ReadLogp(const OpArgs& args, const Literal& logp, int target, int weight) {
  if (logp.type.rank() < 1) return args.Error("logp has no class dimension");
  SPMD_ASSIGN_OR_RETURN(const Targets targets,
                        ReadTargets(args, target, weight, logp.type.dims.back()));
  Dims expected = targets.target->type.dims;
  expected.push_back(targets.classes);
  if (expected != logp.type.dims) return args.Error("logp and target do not agree");
  return targets;
}

double RowLoss(const Literal& logp, const Targets& targets, size_t row) {
  const int64_t column = targets.Column(row);
  return column < 0 ? 0 : -targets.Weight(row) * logp.data[row * targets.classes + column];
}

absl::StatusOr<Literals> NllSum(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* logp, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Targets targets, ReadLogp(args, *logp, 1, 2));
  SPMD_ASSIGN_OR_RETURN(Literal loss, args.Make(0, {}));
  SPMD_ASSIGN_OR_RETURN(Literal weight, args.Make(1, {}));
  for (size_t row = 0; row < targets.rows(); ++row) {
    if (targets.Column(row) < 0) continue;
    loss.data[0] += RowLoss(*logp, targets, row);
    weight.data[0] += targets.Weight(row);
  }
  return Literals{std::move(loss), std::move(weight)};
}

absl::StatusOr<Literals> NllRows(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* logp, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Targets targets, ReadLogp(args, *logp, 1, 2));
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, targets.target->type.dims));
  for (size_t row = 0; row < targets.rows(); ++row) out.data[row] = RowLoss(*logp, targets, row);
  return One(std::move(out));
}

// The gradient of a row: `grad` has one number for all rows or one per row.
absl::StatusOr<double> RowGradient(const OpArgs& args, const Literal& grad, const Literal& scale,
                                   size_t row) {
  if (scale.data.size() != 1 || (grad.data.size() != 1 && row >= grad.data.size())) {
    return args.Error("gradient or scale does not fit the targets");
  }
  return grad.data[grad.data.size() == 1 ? 0 : row] * scale.data[0];
}

absl::StatusOr<Literals> NllBackward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* scale, args.operand(3));
  SPMD_ASSIGN_OR_RETURN(const Targets targets, ReadTargets(args, 1, 2, args.Int("num_classes")));
  Dims dims = targets.target->type.dims;
  dims.push_back(targets.classes);
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  for (size_t row = 0; row < targets.rows(); ++row) {
    const int64_t column = targets.Column(row);
    if (column < 0) continue;
    SPMD_ASSIGN_OR_RETURN(const double gradient, RowGradient(args, *grad, *scale, row));
    out.data[row * targets.classes + column] = -targets.Weight(row) * gradient;
  }
  return One(std::move(out));
}

// (exp(logp) - onehot(target)) · weight[target] · grad · scale; zero for ignored rows.
absl::StatusOr<Literals> CrossEntropyBackward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* logp, args.operand(1));
  SPMD_ASSIGN_OR_RETURN(const Literal* scale, args.operand(4));
  SPMD_ASSIGN_OR_RETURN(const Targets targets, ReadLogp(args, *logp, 2, 3));
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, logp->type.dims));
  for (size_t row = 0; row < targets.rows(); ++row) {
    if (AsIndex(targets.target->data[row]) == targets.ignored) continue;
    SPMD_ASSIGN_OR_RETURN(const double gradient, RowGradient(args, *grad, *scale, row));
    for (int64_t c = 0; c < targets.classes; ++c) {
      const size_t at = row * targets.classes + c;
      out.data[at] =
          (std::exp(logp->data[at]) - (c == targets.Column(row))) * targets.Weight(row) * gradient;
    }
  }
  return One(std::move(out));
}

// aten::gather: in, index of the same rank; indices along one dimension.
absl::StatusOr<Literals> GatherAlong(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* where, args.operand(1, in->type.rank()));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank()));
  if (in->type.rank() == 0) return args.Error("gathers from a tensor of rank 0");
  for (int d = 0; d < in->type.rank(); ++d) {
    if (d != dim && where->type.dims[d] > in->type.dims[d]) return args.Error("index too large");
  }
  return One(Gather(args, *in, where->type.dims, [&](const Dims& index) -> int64_t {
    Dims from = index;
    from[dim] = AsIndex(where->data[Ravel(index, where->type.dims)]);
    const bool inside = from[dim] >= 0 && from[dim] < in->type.dims[dim];
    return inside ? Ravel(from, in->type.dims) : -2;  // -2: an error
  }));
}

absl::StatusOr<Literals> IndexSelect(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* where, args.operand(1, 1));
  SPMD_ASSIGN_OR_RETURN(const int dim, args.Dim("dim", in->type.rank()));
  if (in->type.rank() == 0) return args.Error("selects from a tensor of rank 0");
  Dims dims = in->type.dims;
  dims[dim] = where->type.dims[0];
  return One(Gather(args, *in, dims, [&](const Dims& index) -> int64_t {
    Dims from = index;
    from[dim] = AsIndex(where->data[index[dim]]);
    const bool inside = from[dim] >= 0 && from[dim] < in->type.dims[dim];
    return inside ? Ravel(from, in->type.dims) : -2;
  }));
}

constexpr KernelRow kIndexingKernels[] = {
    {"aten::embedding", Embedding},
    {"aten::embedding_dense_backward", EmbeddingBackward},
    {"aten::gather", GatherAlong},
    {"aten::index_select", IndexSelect},
    {"spmd::cross_entropy_dinput", CrossEntropyBackward},
    {"spmd::embedding", Embedding},
    {"spmd::embedding_dweight", EmbeddingBackward},
    {"spmd::nll_dinput", NllBackward},
    {"spmd::nll_rows", NllRows},
    {"spmd::nll_sum", NllSum},
};
static_assert(SortedByOp(kIndexingKernels));

}  // namespace

absl::Span<const KernelRow> IndexingKernels() { return kIndexingKernels; }

}  // namespace spmd::reference
