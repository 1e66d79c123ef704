// SPDX-License-Identifier: Apache-2.0
// Kernels in the place of PyTorch's autograd kernels, for the calls that programs are full of.
//
// PyTorch's count every argument, ask each twice for tangents and pass the call on through the
// dispatcher, twice for views and writes; that costs more than recording the call. Here:
//
//   nothing to differentiate  (no grad mode, or no gradients among the arguments) the call is gone
//                             over from the recording at once; a view learns of its base and a
//                             write counts as a version by PyTorch's own functions
//   something                 for ops of csrc/trace/derivatives.h, PyTorch's own node is made here
//
// Every other call is PyTorch's: tangents, other keys in between (modes, conjugate views), views
// that remember how they were made, calls that no recording knows.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>

#include <optional>

#include "csrc/trace/op_info.h"

namespace spmd::trace {

// For AutogradPrivateUse1. Nothing for an op that has none.
std::optional<c10::KernelFunction> AutogradShortcut(const OpInfo& op);

// True when the device's kernel is the next one below autograd's, but for PyTorch's kernel of views
// and writes.
bool IsNext(c10::DispatchKeySet keys);
// And that one is to see the call.
bool IsNextOfTracked(c10::DispatchKeySet keys);

// The keys that hand a call on to PyTorch's own autograd kernel, which is that of every autograd
// key that has no other. `keys` may hold keys above ours, which have been here already.
c10::DispatchKeySet ToPyTorchsKernel(c10::DispatchKeySet keys);

// What forward-mode differentiation has for a tensor.
bool HasTangent(const at::Tensor& t);

}  // namespace spmd::trace
