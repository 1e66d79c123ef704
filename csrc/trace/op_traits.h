// SPDX-License-Identifier: Apache-2.0
// Facts about torch schemas that schemas do not state, as tables.
#pragma once

#include <string>
#include <string_view>

namespace spmd::trace {

// Arguments that say where or how a result lies: device, layout, pin_memory, memory_format,
// non_blocking.
bool IsDroppedArgument(const std::string& name);
// An op of each element of its lists.
inline constexpr std::string_view kForeachPrefix = "aten::_foreach_";
bool IsForeach(const std::string& op);
// Ops that run on host copies whatever their shapes.
bool IsHostOnly(const std::string& op);
// foo_copy where foo is a view: the same function, where there are no strides.
bool IsCopyOfView(const std::string& op);
// Ops whose result's shape depends on data only where an index is a mask, which Meta refuses.
bool IsDynamicByMaskOnly(const std::string& op);
// Composite ops that are recorded whole all the same.
bool IsKeptWhole(const std::string& op);
// Ops with PyTorch kernels of their own that serve us as they are.
bool IsLeftToPyTorch(const std::string& op);

}  // namespace spmd::trace
