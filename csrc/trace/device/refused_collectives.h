// SPDX-License-Identifier: Apache-2.0
// Refuses torch.distributed on tensors of the device, with what to write instead.
#pragma once

namespace spmd::trace {

// Refuses collectives and sends of process groups, whether torch.distributed, DDP or FSDP calls
// them. Called once per process.
void RefuseCollectives();

}  // namespace spmd::trace
