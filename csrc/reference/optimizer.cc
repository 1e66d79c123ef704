// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

// Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2. If not decoupled,
// the weight decay is L2 regularization, which is part of the gradient.
absl::StatusOr<Literals> Adam(const OpArgs& args) {
  const Literal* in[4];
  Literals out;
  for (int k = 0; k < 4; ++k) {
    SPMD_ASSIGN_OR_RETURN(in[k], args.operand(k));
    if (in[k]->type.dims != in[0]->type.dims) return args.Error("four tensors of one shape");
    if (k == 3) break;
    SPMD_ASSIGN_OR_RETURN(Literal made, args.Make(k, in[0]->type.dims));
    out.push_back(std::move(made));
  }
  SPMD_ASSIGN_OR_RETURN(const Literal* step, args.operand(4, 0));
  const double lr = args.Double("lr"), beta1 = args.Double("beta1"), beta2 = args.Double("beta2"),
               decay = args.Double("weight_decay"), eps = args.Double("eps");
  const bool decoupled = args.BoolOr("decoupled", true), maximize = args.BoolOr("maximize", false);
  const double bias1 = 1 - std::pow(beta1, step->data[0]);
  const double bias2 = 1 - std::pow(beta2, step->data[0]);
  for (size_t i = 0; i < in[0]->data.size(); ++i) {
    double param = in[0]->data[i], grad = maximize ? -in[1]->data[i] : in[1]->data[i];
    if (decoupled) {
      param -= lr * decay * param;
    } else {
      grad += decay * param;
    }
    const double mean = beta1 * in[2]->data[i] + (1 - beta1) * grad;
    const double square = beta2 * in[3]->data[i] + (1 - beta2) * grad * grad;
    out[0].data[i] = param - lr * (mean / bias1) / (std::sqrt(square / bias2) + eps);
    out[1].data[i] = mean;
    out[2].data[i] = square;
  }
  return out;
}

constexpr KernelRow kOptimizerKernels[] = {{"spmd::adam", Adam}};

}  // namespace

absl::Span<const KernelRow> OptimizerKernels() { return kOptimizerKernels; }

}  // namespace spmd::reference
