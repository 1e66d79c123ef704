// SPDX-License-Identifier: Apache-2.0
// Ops along one dimension in which every output reads a few inputs near its own position, at any
// rational ratio: interpolation, means, padding that repeats the image. aten's kernels count
// positions from the first row that they get, so a dimension that such an op changes is whole. To
// shard it, the op becomes spmd::resample, which is told where its tile lies.
//
//   output o reads the inputs from  ⌊(o·step + start) / unit⌋  up to  ⌊(o·step + stop) / unit⌋
//
// For linear interpolation from 4 to 6 rows (2 inputs for 3 outputs), the position of output o is
// (o + ½)·2/3 - ½ = (4·o - 1) / 6; output 3 lies at 11/6 and reads inputs 1 and 2. For padding by
// two rows the position is o - 2.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/rule.h"
#include "csrc/rules/tables/call_factors.h"

namespace spmd::rules {

struct Resampling {
  // How inputs are weighted, and what replaces an input outside. nearest, linear, cubic: the
  // nearest one inside. reflect: the mirrored one; the outermost input is not repeated. linear_aa,
  // cubic_aa, mean: nothing; the others get more weight.
  std::string filter;
  int64_t step = 1, start = 0, stop = 1, unit = 1;
  int64_t num_in = 1, num_out = 1;

  // The inputs that one output reads, before those outside are replaced.
  int64_t First(int64_t output) const {
    return FloorDiv(CheckedAdd(CheckedMul(output, step), start), unit);
  }
  int64_t End(int64_t output) const {
    return FloorDiv(CheckedAdd(CheckedMul(output, step), stop), unit);
  }
  // All inputs that `outputs` read, and all outputs that read any of `inputs`.
  ExprInterval InputsOf(const ExprInterval& outputs) const;
  ExprInterval OutputsOf(const ExprInterval& inputs) const;
};

ir::ValueId Resample(Builder& b, ir::ValueId input, int dim, const Resampling& r);
// The gradient of the input of Resample.
ir::ValueId ResampleDInput(Builder& b, ir::ValueId grad, int dim, const Resampling& r);

// spmd::resample(Tensor input, int dim, str filter, int step, int start, int stop, int unit,
//                int num_in, int num_out, int from, int offset, int size) -> Tensor
// `input` begins at index `from` of num_in. The result is the `size` outputs from `offset` on, of
// num_out.
absl::StatusOr<OpFactors> ResampleFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> ResampleTypes(const OpCall& call);
Attributes LocalResample(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// spmd::resample_dinput(Tensor grad, …) -> Tensor
// `grad` begins at output `from`. The result is the gradients of the `size` inputs from `offset`
// on.
absl::StatusOr<OpFactors> ResampleDInputFactors(const OpCall& call);
Attributes LocalResampleDInput(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

}  // namespace spmd::rules
