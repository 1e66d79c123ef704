// SPDX-License-Identifier: Apache-2.0
// Linear algebra on batches of matrices, and Fourier transforms. Leading dimensions pass; those of
// a matrix or a transform are whole. Columns of a right-hand side pass, too.
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/families.h"
#include "csrc/rules/promotion.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/reduced_dims.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

bool FromTheLeft(const OpCall& call) { return call.attrs().GetBoolOr("left", true); }

// A X = B, or X A = B. As in PyTorch, B is one vector per matrix where it lacks a dimension.
absl::StatusOr<OpFactors> SolveFactors(const OpCall& call) {
  const Dims& a = call.operand(0).dims;
  const Dims& b = call.operand(1).dims;
  const bool vectors =
      b.size() == 1 || (a.size() - 1 == b.size() && std::equal(b.begin(), b.end(), a.begin()));
  const char* rhs = vectors ? "... [n]" : FromTheLeft(call) ? "... [n] k" : "... k [n]";
  return FactorsByText(
      call, absl::StrCat("... [m] [n], ", rhs, " -> ", rhs, ", = ... [m] [n], = ... [n], = ..."));
}

absl::StatusOr<OpFactors> LuSolveFactors(const OpCall& call) {
  const char* rhs = FromTheLeft(call) ? "... [n] k" : "... k [n]";
  return FactorsByText(call, absl::StrCat("... [m] [n], ... [n], ", rhs, " -> ", rhs));
}

absl::StatusOr<OpFactors> TriangularFactors(const OpCall& call) {
  const char* rhs = FromTheLeft(call) ? "... [n] k" : "... k [n]";
  return FactorsByText(call, absl::StrCat("... [m] [n], ", rhs, " -> ", rhs));
}

// ormqr applies reflectors to the columns or rows of `other`.
absl::StatusOr<OpFactors> OrmqrFactors(const OpCall& call) {
  const char* other = FromTheLeft(call) ? "... [p] q" : "... p [q]";
  return FactorsByText(call, absl::StrCat("... [m] [n], ... [k], ", other, " -> ", other));
}

absl::StatusOr<OpFactors> CrossFactors(const OpCall& call) {
  SPMD_ASSIGN_OR_RETURN(OpFactors f, BroadcastFactors(call));
  for (int factor : f.results[0][call.Dim("dim", call.results[0].rank())]) {
    f.factors[factor].whole = true;
  }
  return f;
}

absl::StatusOr<std::vector<TensorType>> LeastSquaresTypes(const OpCall& call) {
  const TensorType &a = call.operand(0), &b = call.operand(1);
  const Dims batch(a.dims.begin(), a.dims.end() - 2);
  const int64_t rows = a.dims[a.rank() - 2], columns = a.dims[a.rank() - 1], sides = b.dims.back();
  const DType real = RealOf(a.dtype);
  const auto with = [&](std::initializer_list<int64_t> more) {
    Dims dims = batch;
    dims.insert(dims.end(), more);
    return dims;
  };
  return std::vector<TensorType>{{a.dtype, with({columns, sides})},
                                 {real, with({sides})},
                                 {DType::kI64, batch},
                                 {real, with({std::min(rows, columns)})}};
}

constexpr auto kLinearAlgebraRows = Rows(
    Computed("aten::_fft_c2c", NamedDimsWhole).Jointly({0}).CannotFail(),
    Computed("aten::_fft_c2r", NamedDimsWhole).Jointly({0}).CannotFail(),
    Computed("aten::_fft_r2c", NamedDimsWhole).Jointly({0}).CannotFail(),
    Einsum("aten::_linalg_det", "... [m] [n] -> ..., ... [m] [n], ... [n]"),
    Einsum("aten::_linalg_eigh", "... [m] [n] -> ... [n], ... [m] [n]?"),
    Einsum("aten::_linalg_eigvals", "... [m] [n] -> ... [n]"),
    Einsum("aten::_linalg_slogdet", "... [m] [n] -> ..., ..., ... [m] [n], ... [n]"),
    Computed("aten::_linalg_solve_ex", SolveFactors),
    Einsum("aten::_linalg_svd", "... [m] [n] -> ... [m] [p]?, ... [k], ... [q] [n]?"),
    Einsum("aten::cholesky", "... [m] [n] -> ... [m] [n]"),
    Einsum("aten::cholesky_inverse", "... [m] [n] -> ... [m] [n]"),
    Einsum("aten::cholesky_solve", "... [n] k, ... [m] [n] -> ... [n] k"),
    Einsum("aten::geqrf", "... [m] [n] -> ... [m] [n], ... [k]"),
    Einsum("aten::linalg_cholesky_ex", "... [m] [n] -> ... [m] [n], ..."),
    Computed("aten::linalg_cross", CrossFactors).Each({0, 1}).CannotFail(),
    Einsum("aten::linalg_eig", "... [m] [n] -> ... [n], ... [m] [n]"),
    Einsum("aten::linalg_householder_product", "... [m] [n], ... [k] -> ... [m] [n]"),
    Einsum("aten::linalg_inv_ex", "... [m] [n] -> ... [m] [n], ..."),
    Einsum("aten::linalg_ldl_factor_ex", "... [m] [n] -> ... [m] [n], ... [n], ..."),
    Einsum("aten::linalg_ldl_solve", "... [m] [n], ... [n], ... [n] k -> ... [n] k"),
    Einsum("aten::linalg_lu", "... [m] [n] -> ... [m] [p]?, ... [m] [k], ... [k] [n]"),
    Einsum("aten::linalg_lu_factor_ex", "... [m] [n] -> ... [m] [n], ... [k], ..."),
    Computed("aten::linalg_lu_solve", LuSolveFactors),
    Einsum("aten::linalg_matrix_exp", "... [m] [n] -> ... [m] [n]"),
    Einsum("aten::linalg_pinv.atol_rtol_tensor", "... [m] [n], ...?, ...? -> ... [n] [m]"),
    Einsum("aten::linalg_qr", "... [m] [n] -> ... [m] [p]?, ... [q] [n]"),
    Computed("aten::linalg_solve_triangular", TriangularFactors),
    Einsum("aten::lu_unpack", "... [m] [n], ... [k] -> ... [m] [p]?, ... [m] [k]?, ... [k] [n]?"),
    Computed("aten::ormqr", OrmqrFactors),
    Einsum("aten::triangular_solve", "... [n] k, ... [m] [n] -> ... [n] k, = ... [m] [n]"),
    Einsum("spmd::lstsq", "... [m] [n], ... [m] k -> ... [n] k, ... k, = ..., = ... [p]")
        .Types(LeastSquaresTypes));
static_assert(AreRowsOf(Family::kLinearAlgebra, kLinearAlgebraRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> LinearAlgebraRows() { return kLinearAlgebraRows; }

}  // namespace spmd::rules
