// SPDX-License-Identifier: Apache-2.0
// torch.distributed on tensors of the device: refused with what to write instead.
#pragma once

namespace spmd::trace {

// Collectives and sends of process groups, whichever function of torch.distributed, DDP or FSDP
// calls them. Once per process.
void RefuseCollectives();

}  // namespace spmd::trace
