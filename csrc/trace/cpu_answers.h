// SPDX-License-Identifier: Apache-2.0
// What the CPU's kernels say of a call before any program runs it. Meta kernels refuse less: which
// element types an op knows, only its kernel says.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/hash.h"
#include "csrc/trace/op_info.h"

namespace spmd::trace {

struct Inference;

// The arguments of a call with other tensors in their places, on the device where these are.
std::vector<c10::IValue> WithTensors(const OpInfo& op, const std::vector<c10::IValue>& args,
                                     c10::DeviceType device,
                                     const std::function<at::Tensor(const at::Tensor&)>& other);

class CpuAnswers {
 public:
  // Whether the CPU takes a call as Meta does. It is tried: where there are no tensors, or none
  // that has elements, as it is, and the results' sizes must be Meta's; where tensors have one
  // element type, for that type alone, on zeros, with long dimensions cut short; where it draws
  // numbers, for the distribution. False is no refusal: run the op, and see.
  bool Agrees(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& meta);

 private:
  absl::flat_hash_map<Hash128, bool> known_;  // by op, element types and lengths of lists
};

}  // namespace spmd::trace
