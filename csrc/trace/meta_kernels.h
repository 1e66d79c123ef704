// SPDX-License-Identifier: Apache-2.0
// Shapes without Python. PyTorch registers Python functions for the Meta device, most of them over
// kernels of its own in C++. The first of them that is called imports sympy and torch._dynamo,
// which takes a second, and each takes a hundred times as long as a kernel in C++.
//
//   aten::add.Tensor    at::meta::add, from which the CPU's kernel takes its shapes, too
//   aten::relu          a function of ours: PyTorch has one in Python only
//   aten::add.Scalar    what the CPU runs: a composition of other ops, each of which is looked up
//   so aten::histc         none of these: Python
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace spmd::trace {

// While it lives, ops of this thread on tensors of Meta take kernels in C++ where there are any;
// also those that these call. Functions of ours throw at arguments that they do not know.
class MetaInCpp {
 public:
  MetaInCpp() : mode_(kKey) {}
  // A key that PyTorch keeps for modes of others, and does not use itself.
  static constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

 private:
  c10::impl::IncludeDispatchKeyGuard mode_;
};

// Ops that have a kernel in the tables here.
std::vector<std::string> MetaKernelsInCpp();

// Ops whose kernel for Meta the dispatcher chose, in alphabetical order: those of them that are in
// Python are what this cannot do. Thread-safe.
std::vector<std::string> MetaKernelsOfDispatcher();
void NoteOfDispatcher(const std::string& op);

}  // namespace spmd::trace
