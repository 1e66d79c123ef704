// SPDX-License-Identifier: Apache-2.0
// Reading of "dim" attributes, and the factors of ops that treat some dimensions unlike the others.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

// Which of `rank` dimensions an attribute names: an int, a list of ints, or all of them when it is
// absent, none or empty.
std::vector<bool> NamedDims(const Attributes& attributes, absl::string_view name, int rank);
// The same as a list, ascending.
std::vector<int64_t> DimList(const std::vector<bool>& named);
// The product of the sizes of the named dimensions.
int64_t CountOf(const Dims& dims, const std::vector<bool>& named);

// One factor per dimension of operand 0; those of `reduced` dimensions are like `proto` and not in
// the results, which keep them with size 1 or drop them. All results have the same dims.
OpFactors ReduceFactors(const OpCall& call, const std::vector<bool>& reduced, const Factor& proto);

// All tensors have the rank of operand 0 and its sizes outside `whole` dimensions, which are not
// cut; inside, a tensor of another size has no factor.
OpFactors WholeDimFactors(const OpCall& call, const std::vector<bool>& whole);
// With those that "dim" names whole: scans, sorts, softmax, Fourier transforms.
absl::StatusOr<OpFactors> NamedDimsWhole(const OpCall& call);

// The dims of a reduction's result.
Dims ReducedSizes(const Dims& dims, const std::vector<bool>& reduced, bool keepdim);

}  // namespace spmd::rules
