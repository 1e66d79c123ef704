// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/zeros.h>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {

std::tuple<Tensor, Tensor, Tensor, Tensor> Lstsq(const Tensor& a, const Tensor& b,
                                                 std::optional<double> rcond,
                                                 std::string_view driver) {
  if (!a.is_cpu() && !a.is_meta()) {
    // GPUs have one of the drivers, which needs full rank.
    auto [solution, residuals, rank, singular_values] = Lstsq(a.cpu(), b.cpu(), rcond, driver);
    return {solution.to(a.device()), residuals.to(a.device()), rank.to(a.device()),
            singular_values.to(a.device())};
  }
  auto [solution, residuals, rank, singular_values] = at::linalg_lstsq(a, b, rcond, driver);
  const auto fill = [&](Tensor& x, IntArrayRef like, IntArrayRef more) {
    std::vector<int64_t> size(like.begin(), like.end());
    size.insert(size.end(), more.begin(), more.end());
    if (x.sizes() != size) x = at::zeros(size, x.options());
  };
  const IntArrayRef batch = a.sizes().slice(0, a.dim() - 2);
  fill(residuals, batch, {b.size(-1)});
  fill(rank, batch, {});
  fill(singular_values, batch, {std::min(a.size(-2), a.size(-1))});
  return {solution, residuals, rank, singular_values};
}

}  // namespace spmd::runtime::kernels
