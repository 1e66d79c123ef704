// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace spmd::runtime {

// SPMD_ONE_PLACE=0: whatever is done only because virtual devices share one CPU is left out
// (LoadedProgram::Options::one_place).
bool EnvironmentOnePlace();

}  // namespace spmd::runtime
