// SPDX-License-Identifier: Apache-2.0
// Kernels that take the place of PyTorch's autograd kernels for the most frequent calls.
//
// PyTorch's kernels change the reference count of every argument, ask each argument twice for
// tangents and pass the call on through the dispatcher, twice for views and writes. That costs more
// than recording the call. The kernels here distinguish two cases:
//
//   nothing to differentiate  (no grad mode, or no gradients among the arguments) the call is
//                             replayed from the recording at once; PyTorch's own functions tell a
//                             view its base and count a write as a version
//   something                 for ops of csrc/trace/pytorch/derivatives.h, PyTorch's own node is
//   made here
//
// PyTorch's kernel takes every other call: those with tangents, with other dispatch keys in between
// (modes, conjugate views) or with views that remember how they were made, and those that no
// recording knows.
//
// All of them are off with SPMD_SHORTCUTS=0 and for versions of PyTorch with which they were not
// verified (csrc/trace/pytorch/check_nodes.h). An op whose node differs from PyTorch's own has
// none.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>

#include <optional>
#include <string>
#include <vector>

#include "csrc/trace/op/op_info.h"

namespace spmd::trace {

bool ShortcutsAreOn();

// The kernel for AutogradPrivateUse1, whether or not shortcuts are on: for ops that the device
// keeps whole and for which PyTorch's kernel would not be asked. Requires: `op` is one of
// UnboxedOps.
c10::KernelFunction AutogradKernelOf(const OpInfo& op);
// The kernel for AutogradPrivateUse1; nullopt for an op that has no shortcut.
std::optional<c10::KernelFunction> AutogradShortcut(const OpInfo& op);

// The ops that have a shortcut, sorted.
std::vector<std::string> OpsWithShortcut();

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
