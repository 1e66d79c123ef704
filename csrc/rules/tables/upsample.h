// SPDX-License-Identifier: Apache-2.0
// Up-sampling. Nearest by a whole number is local: the result is (input copies). Everything else
// looks at neighbours by a scale that a tile does not know, and is whole along the spatial
// dimensions that change; resample.h says what becomes of it when those are cut.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// "scales_h" and the like: the attribute of spatial dimension i of `rank`.
const char* ScaleName(int i, int rank);
// Outputs per input along it where aten is given that, apart from the sizes; else 0.
double GivenScale(const OpCall& call, int i, int rank);
// Images whose rows or columns are one element wide are computed wrongly by aten (2.13), so that no
// dimension may be cut.
bool IsAntialiased(const OpCall& call);
// Is spatial dimension i left as it is by an op that makes `out` indices of `in`? Linear ones do so
// whatever scale is given.
bool KeepsDimension(const OpCall& call, int i, int rank, int64_t in, int64_t out);

// Linear and cubic; the same for the gradient.
absl::StatusOr<OpFactors> InterpolateFactors(const OpCall& call, int rank);
absl::StatusOr<OpFactors> NearestFactors(const OpCall& call, int rank);
// (grad): the sums of the copies' gradients.
absl::StatusOr<OpFactors> NearestBackwardFactors(const OpCall& call, int rank);
// Dims of the result: "output_size" along spatial dimensions; "input_size" names all of them.
absl::StatusOr<std::vector<TensorType>> UpsampleTypes(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> UpsampleBackwardTypes(const OpCall& call);
// "output_size" is grad's spatial sizes, "input_size" the result's dims.
Attributes LocalUpsampleBackward(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut, int rank);

// One dimension after the other where several change, and one by spmd::resample (resample.h). Half
// precision is computed in single. No values where a scale is given that is no small fraction, or
// that aten passes over for some sizes, where rounding decides which input is nearest, or where
// results are rounded to integers.
absl::StatusOr<std::vector<ir::ValueId>> UpsampleByDimension(Builder& b, const OpCall& call,
                                                             absl::Span<const ir::ValueId> operands,
                                                             int rank);
absl::StatusOr<std::vector<ir::ValueId>> UpsampleBackwardByDimension(
    Builder& b, const OpCall& call, absl::Span<const ir::ValueId> operands, int rank);

}  // namespace spmd::rules
