// SPDX-License-Identifier: Apache-2.0
// Optimizers' steps and the gradient scaler. The parts of `_foreach_*` ops are element-wise ops.
#include "csrc/rules/families.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

// The results are the parameter and both averages, not the gradient.
absl::StatusOr<std::vector<TensorType>> AdamTypes(const OpCall& call) {
  return std::vector<TensorType>{*call.operands[0], *call.operands[2], *call.operands[3]};
}

constexpr Row Fused(DecomposeFn decompose) { return Rewritten("", decompose); }

constexpr auto kOptimizerRows = CannotFail(
    Rows(Computed("aten::_amp_foreach_non_finite_check_and_unscale", NoFactors)
             .DecomposesAlways(DecomposeUnscale),
         Computed("aten::_amp_update_scale", NoFactors),  // a few scalars
         // Operands: parameter, gradient, averages of the gradient and of its square, step count.
         Elementwise("spmd::adam").Types(AdamTypes).Flops(14),
         All(Fused(DecomposeAdagrad), {"aten::_fused_adagrad", "aten::_fused_adagrad.tensor_lr"}),
         All(Fused(DecomposeAdam), {"aten::_fused_adam", "aten::_fused_adam.tensor_lr"}),
         All(Fused(DecomposeAdamW), {"aten::_fused_adamw", "aten::_fused_adamw.tensor_lr"}),
         All(Fused(DecomposeSgd), {"aten::_fused_sgd", "aten::_fused_sgd.tensor_lr"})));
static_assert(AreRowsOf(Family::kOptimizer, kOptimizerRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> OptimizerRows() { return kOptimizerRows; }

}  // namespace spmd::rules
