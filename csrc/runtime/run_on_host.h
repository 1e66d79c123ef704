// SPDX-License-Identifier: Apache-2.0
// Ops that PyTorch can run on the CPU only, for tiles that are elsewhere.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace spmd::runtime {

// Calls `op` with copies of its tensors on the host. The results replace the arguments on `stack`,
// on `device`: an argument that the op writes into gets its new values, and is the result where the
// op returns it. Throws what the op throws; then the arguments are as before.
//
//   aten::histogram(x on cuda:0, 4)  →  counts, edges on cuda:0
void RunOnHost(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::Device device);

}  // namespace spmd::runtime
