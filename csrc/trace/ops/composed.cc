// SPDX-License-Identifier: Apache-2.0
// Ops that are composed of a few others. They are written in these, which come back to the boxed
// kernel.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multi_margin_loss.h>
#include <ATen/ops/multi_margin_loss_backward.h>
#include <ATen/ops/multilabel_margin_loss_backward.h>
#include <ATen/ops/multilabel_margin_loss_forward.h>
#include <ATen/ops/put.h>

#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/ops/choose_elements.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

void AsStridedCopy(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor view = at::as_strided(a[0].toTensor(), a[1].toIntVector(), a[2].toIntVector(),
                                         a[3].toOptional<int64_t>());
  stack->push_back(view.clone(at::MemoryFormat::Contiguous));
}

void AsStridedScatter(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), src = a[1].toTensor();
  const std::vector<int64_t> size = a[2].toIntVector(), stride = a[3].toIntVector();
  const int64_t start = a[4].isNone() ? 0 : a[4].toInt() - self.storage_offset();
  int64_t last = start;
  for (size_t d = 0; d < size.size() && d < stride.size(); ++d) {
    last += (size[d] - 1) * stride[d];
  }
  const bool within = start >= 0 && last < self.numel();
  if (!self.is_contiguous() || !within || size.size() != stride.size() || src.sizes() != size ||
      src.numel() == 0 || src.scalar_type() != self.scalar_type()) {
    RunGeneric(state, op, stack);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(at::put(self, PlacesOf(size, stride, start, self.options()), src));
}

// In an expanded tensor, whose elements share memory, elements are written at their places in
// storage. (Eager does the same, and warns that this will change.)
void IndexPutInPlace(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::Tensor self = torch::jit::peek(*stack, 0, op.args.size()).toTensor();
  if (!Buffer::IsOurs(self) || at::has_internal_overlap(self) != at::MemOverlap::Yes ||
      self.numel() == 0) {
    RunGeneric(state, op, stack);
    return;
  }
  TORCH_WARN(
      "Use of index_put_ on expanded tensors is deprecated. Please clone() the tensor before "
      "performing this operation. This also applies to advanced indexing e.g. tensor[indices] = "
      "tensor");
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& index : a[1].toListRef()) {
    indices.push_back(index.toOptional<at::Tensor>());
  }
  const at::Tensor places =
      PlacesOf(self.sizes(), self.strides(), self.storage_offset(), self.options()).index(indices);
  const int64_t elements =
      static_cast<int64_t>(self.storage().nbytes()) / static_cast<int64_t>(self.itemsize());
  at::Tensor stored = at::empty({0}, self.options());
  stored.set_(self.storage(), 0, {elements}, {1});
  stored.put_(places, a[2].toTensor().to(self.options()).expand_as(places), a[3].toBool());
  stack->push_back(self);
}

// Reduces the losses of the rows to their sum or mean, since a kernel on a tile would divide by the
// number of its own rows.
at::Tensor Reduced(const at::Tensor& rows, int64_t reduction) {
  return reduction == at::Reduction::Mean ? rows.mean() : rows.sum();
}

// The gradient of each row's loss.
at::Tensor OfRows(const at::Tensor& grad, const at::Tensor& self, int64_t reduction) {
  const at::Tensor each = reduction == at::Reduction::Mean ? grad.div(self.size(0)) : grad;
  return each.expand({self.size(0)});
}

// True if PyTorch's kernel handles the call: without a reduction, without rows, or with an error.
bool TakenAsItIs(SessionState& state, const OpInfo& op, const Args& a, const at::Tensor& self) {
  const int64_t reduction = a[op.FindArg("reduction")].toInt();
  return reduction == at::Reduction::None || self.dim() < 2 || self.numel() == 0 ||
         !state.shapes.Infer(op, a).ok;
}

void MultiMargin(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  if (TakenAsItIs(state, op, a, self)) return RunGeneric(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor rows =
      at::multi_margin_loss(self, a[1].toTensor(), a[2].toScalar(), a[3].toScalar(),
                            OptionalTensor(a[4]), at::Reduction::None);
  stack->push_back(Reduced(rows, a[5].toInt()));
}

void MultiMarginBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[1].toTensor();
  if (TakenAsItIs(state, op, a, self)) return RunGeneric(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor grad = OfRows(a[0].toTensor(), self, a[6].toInt());
  stack->push_back(at::multi_margin_loss_backward(grad, self, a[2].toTensor(), a[3].toScalar(),
                                                  a[4].toScalar(), OptionalTensor(a[5]),
                                                  at::Reduction::None));
}

void MultiLabelMargin(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  if (TakenAsItIs(state, op, a, self)) return RunGeneric(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const auto [rows, is_target] =
      at::multilabel_margin_loss_forward(self, a[1].toTensor(), at::Reduction::None);
  stack->push_back(Reduced(rows, a[2].toInt()));
  stack->push_back(is_target);
}

void MultiLabelMarginBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[1].toTensor();
  if (TakenAsItIs(state, op, a, self)) return RunGeneric(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor grad = OfRows(a[0].toTensor(), self, a[3].toInt());
  stack->push_back(at::multilabel_margin_loss_backward(grad, self, a[2].toTensor(),
                                                       at::Reduction::None, a[4].toTensor()));
}

constexpr HandlerRow kComposedHandlers[] = {
    {"aten::as_strided_copy", &AsStridedCopy, kReplayable},
    {"aten::as_strided_scatter", &AsStridedScatter},
    {"aten::index_put_", &IndexPutInPlace, kReplayable},
    {"aten::multi_margin_loss", &MultiMargin, kReplayable},
    {"aten::multi_margin_loss_backward", &MultiMarginBackward, kReplayable},
    {"aten::multilabel_margin_loss_backward", &MultiLabelMarginBackward, kReplayable},
    {"aten::multilabel_margin_loss_forward", &MultiLabelMargin, kReplayable},
};
static_assert(IsSortedAndUnique(kComposedHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> ComposedHandlers() { return kComposedHandlers; }

}  // namespace spmd::trace
