// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/filled_leaf.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <typeinfo>

namespace spmd::trace {

at::Tensor FilledLeaf() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return {};
  const torch::autograd::Node& running = *node;
  if (typeid(running) != typeid(torch::autograd::AccumulateGrad)) return {};
  return static_cast<const torch::autograd::AccumulateGrad&>(running).variable;
}

void NoteGradient(Buffer& buffer) {
  const at::Tensor leaf = FilledLeaf();
  if (!Buffer::IsOurs(leaf)) return;
  const Buffer& own = *Buffer::Of(leaf.storage());
  const bool alike = own.form.sizes == buffer.form.sizes && own.form.strides == buffer.form.strides;
  buffer.is_gradient = true;
  buffer.like = alike ? own.mark : nullptr;
}

}  // namespace spmd::trace
