// SPDX-License-Identifier: Apache-2.0
// Up-sampling. Nearest by a whole number is local: the result is (input copies). Everything else
// looks at neighbours by a scale that a tile does not know, and is whole along spatial dimensions.
#pragma once

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

absl::StatusOr<OpFactors> NearestFactors(const OpCall& call, int rank);
// (grad): the sums of the copies' gradients.
absl::StatusOr<OpFactors> NearestBackwardFactors(const OpCall& call, int rank);
// "output_size" is grad's spatial sizes, "input_size" the result's dims.
Attributes LocalUpsampleBackward(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut, int rank);

}  // namespace spmd::rules
