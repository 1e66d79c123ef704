// SPDX-License-Identifier: Apache-2.0
// Up-sampling. Nearest by a whole number is local: the result is (input copies). Everything else
// reads neighbours at a scale that a tile does not know, so spatial dimensions that it changes are
// whole; resample.h tells how they are sharded all the same.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// The attribute with the scale of spatial dimension i of `rank`: "scales_h" and the like.
const char* ScaleName(int i, int rank);
// The number of outputs per input if the call gives it in addition to the sizes; else 0.
double GivenScale(const OpCall& call, int i, int rank);
// True for antialiased ops. aten (2.13) computes them wrongly for images whose rows or columns are
// one element wide, so that not even a spatial dimension that they leave unchanged passes.
bool IsAntialiased(const OpCall& call);
// True if an op that makes `out` indices of `in` leaves spatial dimension i unchanged. Linear ops
// do so whatever scale is given.
bool KeepsDimension(const OpCall& call, int i, int rank, int64_t in, int64_t out);

// Linear and cubic interpolation and their gradients.
absl::StatusOr<OpFactors> InterpolateFactors(const OpCall& call, int rank);
absl::StatusOr<OpFactors> NearestFactors(const OpCall& call, int rank);
// (grad): sums of the gradients of the copies.
absl::StatusOr<OpFactors> NearestBackwardFactors(const OpCall& call, int rank);
// The result's dims: "output_size" is the spatial ones, "input_size" (backward) is all of them.
absl::StatusOr<std::vector<TensorType>> UpsampleTypes(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> UpsampleBackwardTypes(const OpCall& call);
// Sets "output_size" to grad's spatial sizes and "input_size" to the result's dims.
Attributes LocalUpsampleBackward(const OpCall& call, const OpFactors& factors,
                                 const CutFactors& cut, int rank);

// Resamples one dimension after the other by spmd::resample (resample.h). Half precision is
// computed in single precision. Returns no values where a given scale is not a small fraction,
// where aten ignores it for some sizes, where rounding decides which input is nearest, or where
// results are rounded to integers.
absl::StatusOr<std::vector<ir::ValueId>> UpsampleByDimension(Builder& b, const OpCall& call,
                                                             Operands operands, int rank);
absl::StatusOr<std::vector<ir::ValueId>> UpsampleBackwardByDimension(Builder& b, const OpCall& call,
                                                                     Operands operands, int rank);

}  // namespace spmd::rules
