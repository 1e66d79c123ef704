// SPDX-License-Identifier: Apache-2.0
// Which kernels see a call at AutogradPrivateUse1, and which see it next.
#pragma once

#include <ATen/core/Tensor.h>

namespace spmd::trace {

// True if the device's kernel is the next below autograd's, apart from PyTorch's kernel of views
// and writes.
bool IsNext(c10::DispatchKeySet keys);
// True if, in addition, PyTorch's kernel of views and writes must see the call.
bool IsNextOfTracked(c10::DispatchKeySet keys);

// The keys with which a call goes to PyTorch's own autograd kernel, which serves every autograd key
// that has no kernel of its own. `keys` may contain keys above the device's; their kernels have
// run.
c10::DispatchKeySet ToPyTorchsKernel(c10::DispatchKeySet keys);

// True if the device's kernel is the next that sees an op on `t`, apart from autograd's and
// autocast's, and autograd has no tangent to compute.
bool IsPlain(const at::Tensor& t);

// True if `t` has a tangent of forward-mode differentiation.
bool HasTangent(const at::Tensor& t);

}  // namespace spmd::trace
