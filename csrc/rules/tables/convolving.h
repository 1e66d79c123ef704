// SPDX-License-Identifier: Apache-2.0
// Convolutions of any number of spatial dimensions. Channels are (group channel). The batch and the
// group pass, input channels are reduced, output channels pass. A spatial dimension of the result
// is sharded with a window on the input (csrc/rules/tables/sliding.h). The kernel's dimensions are
// whole.
//
//   convolution    n (g i) h.., (g o) i k.., (g o)? -> n (g o) H..
//   conv_dinput    n (g o) H.., (g o) i k..         -> n (g i) h..
//   conv_dweight   n (g o) H.., n (g i) h..         -> (g o) i k..
//
// A transposed convolution has the operands of conv_dinput. Its spatial dimensions pass where
// windows neither overlap nor leave gaps; else they are whole, since aten's op cannot compute a
// region of its result, and it is rewritten as a conv_dinput to shard them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

absl::StatusOr<OpFactors> ConvolutionFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> ConvolutionTypes(const OpCall& call);
Attributes LocalConvolution(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// The attributes that list dims have an entry per dimension of the tensor, "crop_start" one per
// spatial dimension.
absl::StatusOr<OpFactors> ConvDInputFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> ConvDInputTypes(const OpCall& call);
Attributes LocalConvDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

absl::StatusOr<OpFactors> ConvDWeightFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> ConvDWeightTypes(const OpCall& call);
Attributes LocalConvDWeight(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// A transposed convolution with overlapping windows, written as a conv_dinput; returns no values
// for any other.
absl::StatusOr<std::vector<ir::ValueId>> TransposedAsDInput(Builder& b, const ir::Graph& from,
                                                            const ir::Node& node,
                                                            Operands operands);

// aten::convolution_backward(grad, input, weight) -> gradients of input, weight, bias: one op for
// each that "output_mask" asks for.
absl::StatusOr<std::vector<ir::ValueId>> ConvolutionBackward(Builder& b, const ir::Graph& from,
                                                             const ir::Node& node,
                                                             Operands operands);

}  // namespace spmd::rules
