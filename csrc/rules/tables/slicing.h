// SPDX-License-Identifier: Apache-2.0
// Slices and their inverses. Along a sliced dimension an operand is read through a window, so that
// the dimension stays sharded and only what crosses a boundary moves:
//
//   slice [2:8) of 10, in two shards         shard [0:3) needs [2:5), shard [3:6) needs [5:8)
//   slice_scatter into [2:8) of 10, in two   shard [0:5) needs [0:3) of src, shard [5:10) [3:6)
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// slice.Tensor; "start" and "end" are read as PyTorch reads them.
absl::StatusOr<OpFactors> SliceFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> SliceTypes(const OpCall& call);
Attributes LocalSlice(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// slice_scatter(self, src): src replaces the slice. slice_backward(grad): grad replaces a slice of
// zeros.
absl::StatusOr<OpFactors> SliceScatterFactors(const OpCall& call);
absl::StatusOr<OpFactors> SliceBackwardFactors(const OpCall& call);
Attributes LocalSliceScatter(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
Attributes LocalSliceBackward(const OpCall& call, const OpFactors& factors, const CutFactors& cut);
// The type by "input_sizes".
absl::StatusOr<std::vector<TensorType>> InputSizesTypes(const OpCall& call);

// select_scatter, select_backward: "dim" is whole. To shard it, they become slice_scatter and
// slice_backward of a slice of length 1.
absl::StatusOr<OpFactors> SelectScatterFactors(const OpCall& call);
absl::StatusOr<OpFactors> SelectBackwardFactors(const OpCall& call);
absl::StatusOr<std::vector<ir::ValueId>> SelectScatterAsSlice(Builder& b, const ir::Graph& from,
                                                              const ir::Node& node,
                                                              Operands operands);
absl::StatusOr<std::vector<ir::ValueId>> SelectBackwardAsSlice(Builder& b, const ir::Graph& from,
                                                               const ir::Node& node,
                                                               Operands operands);

// spmd::slice_start, spmd::slice_start_scatter: the dimension is whole, since the start may only be
// known at run time. To shard it, they become ops on the parts that devices hold (parts.h).
absl::StatusOr<OpFactors> SliceStartFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> SliceStartTypes(const OpCall& call);
absl::StatusOr<OpFactors> SliceStartScatterFactors(const OpCall& call);

}  // namespace spmd::rules
