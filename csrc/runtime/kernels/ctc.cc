// SPDX-License-Identifier: Apache-2.0
// Calls PyTorch's own kernels on the sequences of a tile. The lengths are read on the host.
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <limits>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

std::vector<int64_t> Numbers(const Tensor& lengths) {
  const Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = host.const_data_ptr<int64_t>();
  return {first, first + host.numel()};
}

}  // namespace

std::tuple<Tensor, Tensor> CtcLoss(const Tensor& log_probs, const Tensor& targets,
                                   const Tensor& input_lengths, const Tensor& target_lengths,
                                   int64_t blank, bool zero_infinity, int64_t longest) {
  const int64_t batch = log_probs.size(1), width = 2 * longest + 1;
  if (batch == 0) {
    return {at::empty({0}, log_probs.options()),
            at::empty({0, log_probs.size(0), width}, log_probs.options())};
  }
  auto [loss, alpha] = at::_ctc_loss(log_probs, targets.contiguous(), Numbers(input_lengths),
                                     Numbers(target_lengths), blank, zero_infinity);
  // The result is as wide as the longest target of the whole batch needs.
  if (alpha.size(2) < width) {
    alpha = at::constant_pad_nd(alpha, {0, width - alpha.size(2)},
                                -std::numeric_limits<double>::infinity());
  }
  return {loss, alpha};
}

Tensor CtcLossBackward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                       const Tensor& input_lengths, const Tensor& target_lengths,
                       const Tensor& loss, const Tensor& log_alpha, int64_t blank,
                       bool zero_infinity) {
  if (log_probs.numel() == 0) return at::empty_like(log_probs);
  return at::_ctc_loss_backward(grad, log_probs, targets.contiguous(), Numbers(input_lengths),
                                Numbers(target_lengths), loss, log_alpha, blank, zero_infinity);
}

}  // namespace spmd::runtime::kernels
