// SPDX-License-Identifier: Apache-2.0
// Reads "dim" attributes, and gives the factors of ops that treat some dimensions unlike the
// others.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

// Which of `rank` dimensions the attribute names. It may be an int or a list of ints; all
// dimensions if it is absent, none or empty.
std::vector<bool> NamedDims(const Attributes& attributes, absl::string_view name, int rank);
// The same as a list, ascending.
std::vector<int64_t> DimList(const std::vector<bool>& named);
// The product of the sizes of the named dimensions.
int64_t CountOf(const Dims& dims, const std::vector<bool>& named);

// One factor per dimension of operand 0. Those of `reduced` dimensions are copies of `proto` and
// not in the results, which drop these dimensions or keep them with size 1. All results have the
// same dims.
OpFactors ReduceFactors(const OpCall& call, const std::vector<bool>& reduced, const Factor& proto);

// Factors where all tensors have the rank of operand 0, and its sizes in all dimensions that are
// not `whole`. A tensor with another size in a whole dimension has no factor there.
OpFactors WholeDimFactors(const OpCall& call, const std::vector<bool>& whole);
// WholeDimFactors for the dimensions that "dim" names: scans, sorts, softmax, Fourier transforms.
absl::StatusOr<OpFactors> NamedDimsWhole(const OpCall& call);

// The dims of a reduction's result.
Dims ReducedSizes(const Dims& dims, const std::vector<bool>& reduced, bool keepdim);

}  // namespace spmd::rules
