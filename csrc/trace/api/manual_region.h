// SPDX-License-Identifier: Apache-2.0
// Manual regions on local shapes: what the device does for a thread while the function of a region
// runs. A tensor inside is a device's own, an ordinary tensor of the local sizes; its value knows
// along which axes (csrc/trace/op/manual_axes.h).
//
//   EnterManual(mesh, {"x"}, /*devices=*/4, /*check=*/true);
//   t @ w      t varies along x and w does not: w is made to vary first, so that the gradient of w
//              is the sum of the devices'
//   LeaveManual();
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace spmd::trace {

// Called once per process. `of_level` takes the outermost level of torch.func off a tensor.
using Unwrap = std::function<at::Tensor(const at::Tensor&)>;
void RegisterManualRegions(Unwrap of_level);

// `mesh` is a text; `devices` is the number of those along the axes. With `check`, tensors from
// outside that are sharded over one of the axes are refused.
void EnterManual(const std::string& mesh, const std::vector<std::string>& axes, int64_t devices,
                 bool check);
void LeaveManual();

// The axes along which the devices may have different values. Tensors of torch.func are looked
// into.
std::vector<std::string> VariesAlong(const at::Tensor& t);

}  // namespace spmd::trace
