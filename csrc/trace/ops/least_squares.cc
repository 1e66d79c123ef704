// SPDX-License-Identifier: Apache-2.0
// Least squares, one matrix at a time. PyTorch returns no residuals if any matrix of the batch
// turns out to be rank-deficient, so drivers that compute ranks wait for a number; gelsy, the
// default, and gels are lazy.
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"

namespace spmd::trace {

namespace {

constexpr char kDefaultDriver[] = "gelsy";  // as on a CPU

using Sizes = std::vector<int64_t>;

Sizes BatchOf(const at::Tensor& matrices) {
  return {matrices.sizes().begin(), matrices.sizes().end() - 2};
}

Sizes With(Sizes batch, std::initializer_list<int64_t> more) {
  batch.insert(batch.end(), more);
  return batch;
}

// True if B is one vector for each matrix: it then lacks a dimension, as PyTorch reads it.
bool IsVectors(const at::Tensor& a, const at::Tensor& b) {
  return b.dim() == 1 || (a.dim() - 1 == b.dim() &&
                          std::equal(b.sizes().begin(), b.sizes().end(), a.sizes().begin()));
}

bool Broadcasts(const Sizes& a, const Sizes& b) {
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const int64_t x = a[a.size() - i], y = b[b.size() - i];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}

// True if the op's own checks pass; if not, the CPU reports the error.
bool Fits(const at::Tensor& a, const at::Tensor& b, const std::string& driver) {
  constexpr const char* kDrivers[] = {"gels", "gelsd", "gelss", "gelsy"};
  return std::find(std::begin(kDrivers), std::end(kDrivers), driver) != std::end(kDrivers) &&
         a.dim() >= 2 && b.dim() >= 2 && a.numel() > 0 && b.numel() > 0 &&
         a.scalar_type() == b.scalar_type() && a.scalar_type() != at::kHalf &&
         a.scalar_type() != at::kBFloat16 && (a.is_floating_point() || a.is_complex()) &&
         a.size(-2) == b.size(-2) && Broadcasts(BatchOf(a), BatchOf(b));
}

// Selects what belongs to each matrix of a batch that was expanded.
at::Tensor Unexpanded(at::Tensor x, const Sizes& batch, size_t expanded) {
  for (size_t i = batch.size(); i < expanded; ++i) x = x.select(0, 0);
  for (size_t d = 0; d < batch.size(); ++d) {
    if (batch[d] == 1) x = x.narrow(static_cast<int64_t>(d), 0, 1);
  }
  return x;
}

void LeastSquares(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor a = args[0].toTensor(), b = args[1].toTensor();
  const std::string driver =
      args[3].isNone() ? std::string(kDefaultDriver) : std::string(args[3].toStringView());
  const bool vectors = a.dim() >= 2 && IsVectors(a, b);
  if (vectors) b = b.unsqueeze(-1);
  if (!Fits(a, b, driver)) return RunOnHost(state, op, stack);
  torch::jit::drop(*stack, op.args.size());
  const int64_t rows = a.size(-2), columns = a.size(-1), sides = b.size(-1);
  const Sizes own = BatchOf(a);
  const Sizes batch = at::infer_size(own, BatchOf(b));
  a = a.expand(With(batch, {rows, columns}));
  b = b.expand(With(batch, {rows, sides}));

  const at::ScalarType real = c10::toRealValueType(a.scalar_type());
  TensorMeta metas[] = {
      TensorMeta::Contiguous(a.scalar_type(), With(batch, {columns, sides})),
      TensorMeta::Contiguous(real, With(batch, {sides})),
      TensorMeta::Contiguous(at::kLong, batch),
      TensorMeta::Contiguous(real, With(batch, {std::min(rows, columns)})),
  };
  // Stored column by column, as by LAPACK.
  Dims& strides = metas[0].strides;
  strides[strides.size() - 2] = 1;
  strides.back() = columns;
  std::vector<TensorType> types;
  for (const TensorMeta& meta : metas) types.push_back(TypeOf(meta));
  const TapeId first =
      Emit(state, GetOp("spmd::lstsq"), {c10::IValue(), c10::IValue(), args[2], driver},
           {Read(state, a), Read(state, b)}, types);
  at::Tensor results[4];
  for (int i = 0; i < 4; ++i) results[i] = NewTensor(state, metas[i], first + i);
  auto& [solution, residuals, rank, singular_values] = results;

  const bool finds_values = driver == "gelsd" || driver == "gelss", finds_rank = driver != "gels";
  // PyTorch computes no residuals for gelsy on a CPU.
  const bool has_residuals =
      rows > columns && (!finds_rank || (finds_values && rank.eq(columns).all().item<bool>()));
  const at::TensorOptions options = a.options().dtype(real);
  stack->push_back(vectors ? solution.squeeze(-1) : solution);
  stack->push_back(has_residuals ? residuals : at::empty({0}, options));
  stack->push_back(finds_rank ? Unexpanded(rank, own, batch.size())
                              : at::empty({0}, options.dtype(at::kLong)));
  stack->push_back(finds_values ? Unexpanded(singular_values, own, batch.size())
                                : at::empty({0}, options));
}

// Calls are not replayed, since they may wait for the ranks.
constexpr HandlerRow kLeastSquaresHandlers[] = {
    {"aten::linalg_lstsq", &LeastSquares},
};
static_assert(IsSortedAndUnique(kLeastSquaresHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> LeastSquaresHandlers() { return kLeastSquaresHandlers; }

}  // namespace spmd::trace
