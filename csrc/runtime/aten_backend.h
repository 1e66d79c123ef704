// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/runtime/backend.h"

namespace spmd::runtime {

// A backend whose places are torch devices of this process. ATen does the work, whatever the
// device.
class AtenBackend : public Backend {
 public:
  at::Tensor Allocate(const Place& place, at::IntArrayRef sizes,
                      at::ScalarType type) const override;
  at::Tensor AllocateLike(const Place& place, const at::Tensor& tensor) const override;
  void Run(const c10::OperatorHandle& op, torch::jit::Stack& stack) const override;
  void Copy(const at::Tensor& from, const at::Tensor& to) const override;
  at::Tensor CopyTo(const Place& place, const at::Tensor& tensor) const override;
  void MoveBytes(const at::Tensor& from, const at::Tensor& to) const override;
};

}  // namespace spmd::runtime
