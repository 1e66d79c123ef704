// SPDX-License-Identifier: Apache-2.0
// Windows as columns (im2col, which is F.unfold) and the sum of such columns (col2im, F.fold).
// aten's ops number the windows in one dimension [h·w], so that it and the image are whole. To
// shard them, the ops are rewritten with two dimensions of window positions, for which the rows of
// neighbours suffice.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

absl::StatusOr<std::vector<ir::ValueId>> Im2ColByPosition(Builder& b, const ir::Graph& from,
                                                          const ir::Node& node, Operands operands);
absl::StatusOr<std::vector<ir::ValueId>> Col2ImByPosition(Builder& b, const ir::Graph& from,
                                                          const ir::Node& node, Operands operands);

// spmd::im2col(Tensor image, int[] output_size, int[] kernel_size, int[] dilation, int[] padding,
//              int[] stride) -> Tensor
// image [..., c, h, w] to columns [..., c·kh·kw, p, q] with `output_size` positions (p, q).
absl::StatusOr<OpFactors> Im2ColFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> Im2ColTypes(const OpCall& call);
Attributes LocalIm2Col(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// spmd::col2im(Tensor columns, int[] size, int[] kernel_size, int[] dilation, int[] padding,
//              int[] stride, int[] crop_start) -> Tensor
// The inverse: adds columns up to an image. The result is its `size` rows and columns from
// `crop_start` on.
absl::StatusOr<OpFactors> Col2ImFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> Col2ImTypes(const OpCall& call);
Attributes LocalCol2Im(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

}  // namespace spmd::rules
