// SPDX-License-Identifier: Apache-2.0
// Processes that exchange through a process group of torch.distributed: tensors on the host (Gloo)
// or on GPUs (NCCL). Nothing of CUDA is needed to compile this.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "csrc/runtime/job_watch.h"
#include "csrc/runtime/peers.h"

namespace spmd::runtime {

// One channel of a job: exchanges of several channels may go on at the same time. `group` is its
// own, so that nobody else's collectives come between, and is made with a timeout that is a little
// longer than `timeout`. A group must not be destroyed while an exchange is pending, so peers whose
// job has failed are kept for ever. `device` is where the buffers are; the group has a backend for
// it. An exchange on a GPU is over when its call returns, and a failed one has ended all work of
// the group there, since a kernel that waits for another process would keep the GPU for ever.
std::unique_ptr<Peers> MakeC10dPeers(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                     std::shared_ptr<JobWatch> watch, std::string channel,
                                     std::chrono::milliseconds timeout,
                                     c10::Device device = c10::Device(c10::kCPU));

}  // namespace spmd::runtime
