// SPDX-License-Identifier: Apache-2.0
// What the CPU's kernels say of a call before any program runs it. Meta kernels refuse less: only
// an op's kernel knows which element types the op supports.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/op/op_info.h"
#include "csrc/trace/op/words.h"

namespace spmd::trace {

struct Inference;

// The arguments of a call in which other(t) replaces each tensor t; `device` is the device of the
// replacements.
std::vector<c10::IValue> WithTensors(const OpInfo& op, const std::vector<c10::IValue>& args,
                                     c10::DeviceType device,
                                     const std::function<at::Tensor(const at::Tensor&)>& other);

// False for ops whose kernels write where their integers say, unchecked, and whose integers may not
// all be zero.
bool IsDefinedOnZeros(const OpInfo& op);

class CpuAnswers {
 public:
  // True if the CPU accepts a call that Meta accepts. The call is tried: as it is, if no tensor in
  // it has elements, and then the results' sizes must be those of `meta`; on zeros with long
  // dimensions shortened, if its tensors have one element type, for that type alone; and for the
  // distribution, if it draws numbers. False is not a refusal: the op must be run to know.
  bool Agrees(const OpInfo& op, const std::vector<c10::IValue>& args, const Inference& meta);

 private:
  absl::flat_hash_map<Words, bool> known_;  // by op, element types and lengths of lists
};

}  // namespace spmd::trace
