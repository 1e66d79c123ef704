// SPDX-License-Identifier: Apache-2.0
// Ops that are composed of a few others. They are written in these, which come back to the boxed
// kernel.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/multi_margin_loss.h>
#include <ATen/ops/multi_margin_loss_backward.h>
#include <ATen/ops/multilabel_margin_loss_backward.h>
#include <ATen/ops/multilabel_margin_loss_forward.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/put.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/dispatch/run_on_host.h"
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

// True for whole numbers of equal types and sizes, of which PyTorch's kernel on lists takes the
// quotient towards zero. The op of a single tensor refuses them.
bool DividesWholeNumbers(const Args& a) {
  const std::vector<at::Tensor> self = a[0].toTensorVector();
  const auto fits = [&](size_t i) {
    const std::vector<at::Tensor> list = a[i].toTensorVector();
    return std::equal(list.begin(), list.end(), self.begin(), self.end(),
                      [](const at::Tensor& t, const at::Tensor& s) {
                        return Buffer::IsOurs(t) && t.scalar_type() == s.scalar_type() &&
                               t.sizes() == s.sizes();
                      });
  };
  return std::all_of(self.begin(), self.end(),
                     [](const at::Tensor& t) {
                       return Buffer::IsOurs(t) &&
                              at::isIntegralType(t.scalar_type(), /*includeBool=*/false);
                     }) &&
         fits(1) && fits(2);
}

void AddQuotients(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  Args a = PeekArguments(op, stack);
  const std::vector<at::Tensor> self = a[0].toTensorVector();
  const bool one = a[3].isScalar();
  if (self.empty() || !DividesWholeNumbers(a) || (!one && a[3].toListRef().size() != self.size())) {
    return RunGeneric(state, op, stack);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const std::vector<at::Tensor> numerators = a[1].toTensorVector();
  const std::vector<at::Tensor> denominators = a[2].toTensorVector();
  std::vector<at::Tensor> results;
  for (size_t k = 0; k < self.size(); ++k) {
    const c10::Scalar value = one ? a[3].toScalar() : a[3].toListRef()[k].toScalar();
    const at::Tensor quotient = at::div(numerators[k], denominators[k], "trunc");
    const at::Tensor sum = at::add(self[k], quotient, value.to<int64_t>());
    results.push_back(op.written.empty() ? sum : self[k].copy_(sum));
  }
  if (!op.result_alias.empty()) stack->push_back(c10::IValue(std::move(results)));
}

void AddmmActivation(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor sum = at::addmm(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(),
                                   a[3].toScalar(), a[4].toScalar());
  stack->push_back(a[5].toBool() ? at::gelu(sum) : at::relu(sum));
}

// Rows that are longer than `max_norm` and whose index occurs are shortened to it.
void EmbeddingRenorm(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), indices = a[1].toTensor();
  const bool fits = self.dim() == 2 && self.is_floating_point() &&
                    (indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt) &&
                    Buffer::IsOurs(self) && indices.numel() > 0;
  if (!fits) return RunOnHost(state, op, stack);  // changes nothing, or raises the error
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const at::Tensor places = indices.reshape({-1}).to(at::kLong);
  const at::Tensor occurs =
      at::zeros({self.size(0)}, self.options().dtype(at::kBool)).index_fill(0, places, 1);
  const double most = a[2].toDouble();
  const at::Tensor norm = at::norm(self, a[3].toScalar(), {1}, /*keepdim=*/true);
  const at::Tensor shortens = norm.gt(most).logical_and(occurs.unsqueeze(1));
  const at::Tensor factor = norm.add(1e-7).reciprocal().mul(most);
  stack->push_back(self.copy_(at::where(shortens, self.mul(factor), self)));
}

constexpr HandlerRow kComposedHandlers[] = {
    {"aten::_addmm_activation", &AddmmActivation, kReplayable},
    {"aten::_addmm_activation.out", &RunIntoOut},
    {"aten::_foreach_addcdiv.Scalar", &AddQuotients, kReplayable},
    {"aten::_foreach_addcdiv.ScalarList", &AddQuotients, kReplayable},
    {"aten::_foreach_addcdiv_.Scalar", &AddQuotients, kReplayable},
    {"aten::_foreach_addcdiv_.ScalarList", &AddQuotients, kReplayable},
    {"aten::as_strided_copy", &AsStridedCopy, kReplayable},
    {"aten::as_strided_scatter", &AsStridedScatter},
    {"aten::embedding_renorm_", &EmbeddingRenorm},
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
