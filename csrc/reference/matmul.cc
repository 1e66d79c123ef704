// SPDX-License-Identifier: Apache-2.0
#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

absl::StatusOr<Literal> Product(const OpArgs& args, const char* spec, int first = 0) {
  SPMD_ASSIGN_OR_RETURN(const Literal* a, args.operand(first));
  SPMD_ASSIGN_OR_RETURN(const Literal* b, args.operand(first + 1));
  return Contract(args, 0, spec, {a, b});
}

// product := alpha·product + beta·added, where `added` broadcasts.
absl::Status AddScaled(const OpArgs& args, Literal& product, double alpha, const Literal& added,
                       double beta) {
  const std::optional<Dims> dims = BroadcastDims({product.type.dims, added.type.dims});
  if (!dims.has_value() || *dims != product.type.dims) {
    return args.Error(
        absl::StrCat(added.type.ToString(), " does not broadcast to ", product.type.ToString()));
  }
  for (size_t i = 0; i < product.data.size(); ++i) {
    const Dims index = Unravel(static_cast<int64_t>(i), *dims);
    product.data[i] *= alpha;
    // As in PyTorch, a tensor scaled by 0 is not read, so that its NaNs have no effect.
    if (beta != 0) product.data[i] += beta * added.data[RavelBroadcast(index, added.type.dims)];
  }
  return absl::OkStatus();
}

template <const char* spec>
absl::StatusOr<Literals> Plain(const OpArgs& args) {
  return One(Product(args, spec));
}

template <const char* spec>
absl::StatusOr<Literals> AddProduct(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* added, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(Literal product, Product(args, spec, 1));
  SPMD_RETURN_IF_ERROR(
      AddScaled(args, product, args.DoubleOr("alpha", 1), *added, args.DoubleOr("beta", 1)));
  return One(std::move(product));
}

absl::StatusOr<Literals> Linear(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(Literal product, Product(args, ".k,nk->.n"));
  if (const Literal* bias = args.optional(2)) {
    SPMD_RETURN_IF_ERROR(AddScaled(args, product, 1, *bias, 1));
  }
  return One(std::move(product));
}

absl::StatusOr<Literals> Matmul(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* a, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(const Literal* b, args.operand(1));
  const bool vector_a = a->type.rank() == 1;
  const bool vector_b = b->type.rank() == 1;
  return One(Product(args, vector_a ? (vector_b ? "k,k->" : "k,.kn->.n")
                                    : (vector_b ? ".mk,k->.m" : ".mk,.kn->.mn")));
}

constexpr char kMm[] = "mk,kn->mn";
constexpr char kBmm[] = "bmk,bkn->bmn";
constexpr char kReducedBmm[] = "bmk,bkn->mn";
constexpr char kMv[] = "mk,k->m";
constexpr char kDot[] = "k,k->";
constexpr char kOuter[] = "m,n->mn";
constexpr char kInputGradient[] = ".n,nk->.k";
constexpr char kWeightGradient[] = ".n,.k->nk";

constexpr KernelRow kMatmulKernels[] = {
    {"aten::addbmm", AddProduct<kReducedBmm>},
    {"aten::addmm", AddProduct<kMm>},
    {"aten::addmv", AddProduct<kMv>},
    {"aten::addr", AddProduct<kOuter>},
    {"aten::baddbmm", AddProduct<kBmm>},
    {"aten::bmm", Plain<kBmm>},
    {"aten::dot", Plain<kDot>},
    {"aten::linear", Linear},
    {"aten::matmul", Matmul},
    {"aten::mm", Plain<kMm>},
    {"aten::mv", Plain<kMv>},
    {"spmd::linear_dinput", Plain<kInputGradient>},
    {"spmd::linear_dweight", Plain<kWeightGradient>},
};
static_assert(SortedByOp(kMatmulKernels));

}  // namespace

absl::Span<const KernelRow> MatmulKernels() { return kMatmulKernels; }

}  // namespace spmd::reference
