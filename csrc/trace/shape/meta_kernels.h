// SPDX-License-Identifier: Apache-2.0
// Infers shapes without Python. PyTorch registers Python functions for the Meta device, most of
// them over C++ kernels of its own. The first of them that is called imports sympy and
// torch._dynamo, which takes a second, and each of them takes a hundred times as long as a kernel
// in C++.
//
//   aten::add.Tensor    at::meta::add, from which the CPU's kernel takes its shapes, too
//   aten::relu          a function of csrc/trace/shape/meta_functions.h: PyTorch has one in Python
//   only aten::add.Scalar    what the CPU runs: a composition of other ops, each of which is looked
//   up aten::histc         none of these: Python
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "csrc/trace/compat/keys.h"

namespace spmd::trace {

// While an object lives, ops of this thread on Meta tensors use kernels in C++ if there are any; so
// do the ops that these call. The functions of csrc/trace/shape/meta_functions.h throw for
// arguments that they do not know.
class MetaInCpp {
 public:
  MetaInCpp() : mode_(kKey) {}
  static constexpr c10::DispatchKey kKey = compat::kReservedKey;

 private:
  compat::IncludeDispatchKeyGuard mode_;
};

// The ops with a kernel in these tables.
std::vector<std::string> MetaKernelsInCpp();

// The ops whose Meta kernel the dispatcher chose, in alphabetical order. Those with a kernel in
// Python are the ones that the tables lack.
// Thread safety: any thread may call both functions.
std::vector<std::string> MetaKernelsOfDispatcher();
void NoteOfDispatcher(const std::string& op);

}  // namespace spmd::trace
