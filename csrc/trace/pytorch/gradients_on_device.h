// SPDX-License-Identifier: Apache-2.0
// Gradients that PyTorch's formulas compute with a look at the operand's values: whether there are
// zeros among the factors of a product, or NaNs where a maximum is. A look ends the program of a
// step, so that its backward pass is a second one.
//
// The kernels here compute first derivatives by another formula, which looks at nothing. Where
// nothing is zero or NaN its values are those of PyTorch's, bit for bit. Second derivatives
// (`create_graph=True`), tangents and the transforms of torch.func go by PyTorch's formulas.
#pragma once

#include <torch/library.h>

namespace spmd::trace {

// Adds the kernels of max, min, median and nanmedian of a whole tensor, prod and cumprod.
// Requires: `library` is that of AutogradPrivateUse1.
void AddGradientsOnDevice(torch::Library& library);

}  // namespace spmd::trace
