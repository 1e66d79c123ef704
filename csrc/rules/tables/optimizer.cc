// SPDX-License-Identifier: Apache-2.0
// Optimizers' steps and the gradient scaler. The parts of `_foreach_*` ops are element-wise ops.
#include "absl/strings/str_cat.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

// The results are the parameter and both averages, not the gradient.
absl::StatusOr<std::vector<TensorType>> AdamTypes(const OpCall& call) {
  return std::vector<TensorType>{*call.operands[0], *call.operands[2], *call.operands[3]};
}

}  // namespace

std::vector<Rule> OptimizerRules() {
  std::vector<Rule> t = {
      Computed("aten::_amp_foreach_non_finite_check_and_unscale", NoFactors)
          .DecomposesAlways(DecomposeUnscale),
      Computed("aten::_amp_update_scale", NoFactors),  // a few scalars
      // Operands: parameter, gradient, averages of the gradient and of its square, step count.
      Elementwise("spmd::adam").Types(AdamTypes).Flops(14),
  };
  const Rule fused = Computed("", NoFactors);
  auto add = [&](const char* op, DecomposeFn decompose) {
    for (const char* overload : {"", ".tensor_lr"}) {
      t.push_back(fused.DecomposesAlways(decompose));
      t.back().op = absl::StrCat("aten::", op, overload);
    }
  };
  add("_fused_adagrad", DecomposeAdagrad);
  add("_fused_adam", DecomposeAdam);
  add("_fused_adamw", DecomposeAdam);
  add("_fused_sgd", DecomposeSgd);
  return CannotFail(std::move(t));
}

}  // namespace spmd::rules
