// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace spmd::trace {

// Tells PyTorch what autocast does on the device.
void RegisterAutocast();

}  // namespace spmd::trace
