// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/lanes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "csrc/trace/api/register_reshard.h"
#include "csrc/trace/api/session.h"
#include "csrc/trace/compat/autograd.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/op/define.h"
#include "csrc/trace/pytorch/autograd_keys.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/recorder/region.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace {

using Forms = absl::Span<const LaneFormPtr>;

// --- the ops of the device ---

// They have the numbers of forms as an argument, so that calls with equal arguments have equal
// results. The forms themselves are those of the call that the thread is in.
const OpInfo* to_lanes = nullptr;
const OpInfo* from_lanes = nullptr;
thread_local Forms forms_of_call;

at::Tensor RecordLanes(const at::Tensor& x, const LaneForm& form, bool to) {
  KnownMark& known = *form.mark;
  at::Tensor result = ValueOrThrow(
      to ? Session::Get().ReshardApart(x, known.mark, known.fits, form.apart, form.order)
         : Session::Get().ReshardTogether(x, known.mark, known.fits, form.whole, form.back));
  known.fits = true;
  return result;
}

template <bool kTo>
void HandleLanes(SessionState& /*state*/, const OpInfo& op, torch::jit::Stack* stack) {
  const std::vector<at::Tensor> tensors = (*stack)[stack->size() - 2].toTensorVector();
  torch::jit::drop(*stack, op.args.size());
  std::vector<at::Tensor> results(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    if (tensors[k].defined()) results[k] = RecordLanes(tensors[k], *forms_of_call[k], kTo);
  }
  stack->emplace_back(std::move(results));
}

// Whether `spmd::reshard` would find the meshes as the last call has left them.
bool IsLatestMesh(const LaneForm& form) {
  SessionLock lock;
  return lock->meshes.latest() == form.mark->mark->mesh;
}

NewLanes BelowAutograd(absl::Span<const at::Tensor> tensors, Forms forms, bool to) {
  const OpInfo& op = to ? *to_lanes : *from_lanes;
  absl::InlinedVector<int64_t, 4> numbers;
  for (const LaneFormPtr& form : forms) numbers.push_back(form->number);
  const c10::IValue in_lists[2];
  const BorrowedList lists[2] = {at::TensorList(tensors.data(), tensors.size()),
                                 at::IntArrayRef(numbers.data(), numbers.size())};
  std::vector<at::Tensor> results;
  if (IsLatestMesh(*forms[0]) && RunFromRecording(op, {in_lists, lists}, {.tensors = &results})) {
    return {std::move(results), /*replayed=*/true};
  }
  torch::jit::Stack stack{std::vector<at::Tensor>(tensors.begin(), tensors.end()),
                          std::vector<int64_t>(numbers.begin(), numbers.end())};
  const Forms before = std::exchange(forms_of_call, forms);
  const absl::Cleanup restore = [before] { forms_of_call = before; };
  RunAndRecord(op, &stack);
  return {stack.back().toTensorVector(), /*replayed=*/false};
}

// --- autograd ---

std::vector<at::Tensor> AllLanes(absl::Span<const at::Tensor> tensors, Forms forms, bool to);

// The gradients are put together as the tensors were taken apart. It is one node for all arguments
// of a region, because PyTorch's engine spends more on a node than recording does.
struct LanesBackward final : autograd::TraceableFunction {
  explicit LanesBackward(autograd::edge_list edges) : TraceableFunction(std::move(edges)) {}

  std::string name() const override { return "LanesBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    for (size_t k = 0; k < gradients.size(); ++k) {
      if (!task_should_compute_output(k)) gradients[k].reset();
    }
    return AllLanes(gradients, forms, !to);
  }

  std::vector<LaneFormPtr> forms;
  bool to = false;
};

// Gives the results that have an edge one node.
void MakeNode(absl::Span<const at::Tensor> results, Forms forms, const autograd::edge_list& edges,
              bool to) {
  autograd::edge_list valid;
  std::vector<size_t> differentiated;
  for (size_t k = 0; k < results.size(); ++k) {
    if (!edges[k].is_valid()) continue;
    differentiated.push_back(k);
    valid.push_back(edges[k]);
  }
  if (valid.empty()) return;
  const auto node = NewNode<LanesBackward>(std::move(valid));
  node->to = to;
  for (const size_t k : differentiated) {
    node->forms.push_back(forms[k]);
    autograd::set_history(results[k], node);
  }
  ShowNode(node);
}

at::Tensor InThreeOps(const at::Tensor& x, const LaneForm& form, bool to) {
  at::Tensor t = x;
  if (to) {
    const MakingShards making;
    t = Reshard(t, form.mesh, form.spec);
    if (!form.apart.empty()) t = t.reshape({form.apart.data(), form.apart.size()});
    return form.order.empty() ? t : t.permute(form.order);
  }
  if (!form.order.empty()) t = t.permute(form.back);
  if (!form.apart.empty()) t = t.reshape({form.whole.data(), form.whole.size()});
  return Reshard(t, form.mesh, form.spec);
}

// Gives `result`, which has the value of `x`, the gradient function of `x`. False if it has none of
// its own.
bool ShareHistory(const at::Tensor& x, const at::Tensor& result) {
  if (x.is_view() || x.grad_fn() == nullptr) return false;
  compat::SetGradientEdge(result, compat::GradientEdge(x));
  return true;
}

// Tensors that are not defined stay so.
std::vector<at::Tensor> AllLanes(absl::Span<const at::Tensor> tensors, Forms forms, bool to) {
  if (tensors.empty()) return {};
  const auto plain = [](const at::Tensor& x) { return !x.defined() || IsPlain(x); };
  std::vector<at::Tensor> results;
  if (std::all_of(tensors.begin(), tensors.end(), plain)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    results = BelowAutograd(tensors, forms, to).lanes;
  } else {
    for (size_t k = 0; k < tensors.size(); ++k) {
      const at::Tensor& x = tensors[k];
      if (x.defined() && plain(x)) {
        const at::AutoDispatchBelowADInplaceOrView below;
        results.push_back(BelowAutograd({&x, 1}, forms.subspan(k, 1), to).lanes[0]);
      } else {
        results.push_back(x.defined() ? InThreeOps(x, *forms[k], to) : x);
      }
    }
  }
  if (!c10::AutogradState::get_tls_state().get_grad_mode()) return results;
  autograd::edge_list edges(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    const at::Tensor& x = tensors[k];
    if (!x.defined() || !x.requires_grad() || !plain(x)) continue;
    if (!to && forms[k]->apart.empty() && ShareHistory(x, results[k])) continue;
    edges[k] = compat::GradientEdge(x);
  }
  MakeNode(results, forms, edges, to);
  return results;
}

}  // namespace

LaneFormPtr MakeLaneForm(std::string mesh, std::string spec, Dims whole, Dims apart,
                         std::vector<int64_t> order) {
  std::vector<int64_t> back(order.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    const bool fits = order[i] >= 0 && order[i] < static_cast<int64_t>(back.size());
    if (fits) back[order[i]] = static_cast<int64_t>(i);
  }
  if ((!apart.empty() && NumElements(apart) != NumElements(whole)) ||
      std::find(back.begin(), back.end(), -1) != back.end() ||
      (!order.empty() && order.size() != (apart.empty() ? whole : apart).size())) {
    throw std::invalid_argument("lanes: sizes and order do not belong together");
  }
  static std::atomic<int64_t> latest = 0;
  LaneForm form{++latest,         std::move(mesh),  std::move(spec),  nullptr,
                std::move(whole), std::move(apart), std::move(order), std::move(back)};
  form.mark = FindMark(form.mesh, form.spec);
  return std::make_shared<const LaneForm>(std::move(form));
}

std::vector<at::Tensor> ToLanes(absl::Span<const at::Tensor> wholes,
                                absl::Span<const LaneFormPtr> forms) {
  return AllLanes(wholes, forms, /*to=*/true);
}

NewLanes ToLanesWithoutHistory(absl::Span<const at::Tensor> wholes,
                               absl::Span<const LaneFormPtr> forms) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return BelowAutograd(wholes, forms, /*to=*/true);
}

void GiveHistory(absl::Span<const at::Tensor> lanes, absl::Span<const LaneFormPtr> forms,
                 const autograd::edge_list& edges) {
  MakeNode(lanes, forms, edges, /*to=*/true);
}

at::Tensor FromLanes(const at::Tensor& lanes, const LaneFormPtr& form) {
  return AllLanes({&lanes, 1}, {&form, 1}, /*to=*/false)[0];
}

void RegisterLanes() {
  if (to_lanes != nullptr) return;
  to_lanes = DefineOp("spmd::_to_lanes", "_to_lanes(Tensor[] x, int[] forms) -> Tensor[]",
                      &HandleLanes</*kTo=*/true>);
  from_lanes = DefineOp("spmd::_from_lanes", "_from_lanes(Tensor[] x, int[] forms) -> Tensor[]",
                        &HandleLanes</*kTo=*/false>);
}

}  // namespace spmd::trace
