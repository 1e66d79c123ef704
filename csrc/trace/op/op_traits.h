// SPDX-License-Identifier: Apache-2.0
// Facts about ops that torch's schemas do not state, as tables.
#pragma once

#include <string>
#include <string_view>

namespace spmd::trace {

// Arguments that say where or how a result is stored: device, layout, pin_memory, memory_format,
// non_blocking.
bool IsDroppedArgument(const std::string& name);
// The prefix of ops that apply to each element of their lists.
inline constexpr std::string_view kForeachPrefix = "aten::_foreach_";
bool IsForeach(const std::string& op);
// Ops that run on host copies whatever their shapes are.
bool IsHostOnly(const std::string& op);
// True for foo_copy where foo is a view: without strides both are the same function.
bool IsCopyOfView(const std::string& op);
// Ops whose result's shape depends on data only if an index is a mask, which Meta refuses.
bool IsDynamicByMaskOnly(const std::string& op);
// Ops whose indices may be on the host, as with CUDA.
bool TakesHostIndices(const std::string& op);
// Ops that make a tensor from tensors or numbers and whose out= argument decides its type.
bool IsFactoryOfTensors(const std::string& op);
// Ops whose result is a copy of the tensor, and has its mark.
bool IsCopyOfTensor(const std::string& op);
// Ops that change the element type; under autocast they are steps of a computation.
bool IsCast(const std::string& op);
// Composite ops that are recorded undecomposed nevertheless.
bool IsKeptWhole(const std::string& op);
// Ops for which PyTorch's own kernels are used unchanged.
bool IsLeftToPyTorch(const std::string& op);

}  // namespace spmd::trace
