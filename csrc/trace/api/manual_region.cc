// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/api/manual_region.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_join.h"
#include "csrc/trace/compat/keys.h"
#include "csrc/trace/compat/levels.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/op/manual_axes.h"
#include "csrc/trace/op/op_info.h"
#include "csrc/trace/op/op_traits.h"
#include "csrc/trace/pytorch/autograd_keys.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

namespace {

using BorderOp = at::Tensor(const at::Tensor&, at::IntArrayRef, std::string_view, std::string_view);

const c10::TypedOperatorHandle<BorderOp>& Handle(bool enters) {
  static const auto find = [](const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<BorderOp>();
  };
  static const auto in = find("spmd::to_local"), out = find("spmd::to_global");
  return enters ? in : out;
}

// --- derivatives ---

// Each border op is the other's transpose.
struct BorderBackward final : autograd::TraceableFunction {
  explicit BorderBackward(autograd::edge_list edges) : TraceableFunction(std::move(edges)) {}

  std::string name() const override { return enters ? "ToLocalBackward" : "ToGlobalBackward"; }
  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {Handle(!enters).call(gradients[0], size, border, mesh)};
  }

  bool enters = false;
  std::vector<int64_t> size;  // of the operand
  std::string border, mesh;
};

template <bool kEnters>
at::Tensor AtBorderWithGradient(c10::DispatchKeySet keys, const at::Tensor& x, at::IntArrayRef size,
                                std::string_view border, std::string_view mesh) {
  const bool gradient = c10::AutogradState::get_tls_state().get_grad_mode() && x.requires_grad();
  decltype(NewNode<BorderBackward>({})) node;
  if (gradient) {
    node = NewNode<BorderBackward>(autograd::collect_next_edges(x));
    node->enters = kEnters;
    node->size = x.sizes().vec();
    node->border = border;
    node->mesh = mesh;
  }
  at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Handle(kEnters).redispatch(keys & c10::after_autograd_keyset, x, size, border, mesh);
  }();
  if (gradient) {
    autograd::set_history(result, node);
    ShowNode(node);
  }
  if (HasTangent(x)) {
    compat::SetTangent(result, Handle(kEnters).call(compat::TangentOf(x), size, border, mesh));
  }
  return result;
}

// --- regions that are entered ---

Unwrap* unwrap = nullptr;  // set once, before the first region

// A tensor of the device behind the levels of torch.func.
at::Tensor Innermost(at::Tensor t) {
  while (t.defined() && compat::IsOfLevel(t)) t = (*unwrap)(t);
  return t;
}

// Requires: the session's lock is held.
ManualAxes AxesOf(const at::Tensor& innermost) {
  if (!innermost.defined() || !Buffer::IsOurs(innermost)) return 0;
  return Buffer::Of(innermost.storage())->manual();
}

bool IsOfAxis(std::string_view name, std::string_view axis) {
  return name.starts_with(axis) && (name.size() == axis.size() || name[axis.size()] == ':');
}

// Throws if the tensor comes from outside and is sharded over a manual axis.
void CheckFromOutside(const at::Tensor& t) {
  if (!t.defined() || !Buffer::IsOurs(t)) return;
  const Buffer& buffer = *Buffer::Of(t.storage());
  if (buffer.mark == nullptr && NotesOf(buffer) == nullptr) return;
  const MarkPtr mark = MarkOf(t);
  if (mark == nullptr) return;
  for (const SpecEntry& entry : mark->spec) {
    for (const SpecAxis& part : entry.axes) {
      const auto* const name = std::get_if<std::string>(&part);
      if (name == nullptr) continue;
      for (const EnteredManual& region : entered_manual) {
        for (const std::string& axis : region.axes) {
          if (!region.check || !IsOfAxis(*name, axis)) continue;
          TORCH_CHECK_VALUE(false, "a tensor of shape (", absl::StrJoin(t.sizes(), ", "),
                            t.dim() == 1 ? ",)" : ")",
                            " from outside that is sharded over the manual axis '", axis, "'");
        }
      }
    }
  }
}

// The same value for each device along the axes, as one that varies.
at::Tensor Vary(const at::Tensor& t, ManualAxes axes) {
  const std::string border = AllBorder(t.dim(), NamesOf(axes));
  return Handle(/*enters=*/true).call(t, t.sizes(), border, entered_manual.back().mesh);
}

struct Operand {
  at::Tensor innermost;
  ManualAxes axes = 0;
  bool written = false;
};

// Throws if the sizes of a result depend on a shard's values: by a mask, or always.
void CheckShape(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                absl::Span<const Operand> operands) {
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return;
  // One-hot vectors have the size that they are told, if they are told one.
  const std::optional<int> told = op.schema().argumentIndexWithName("num_classes");
  const size_t begin = stack.size() - op.schema().arguments().size();
  if (told.has_value() && stack[begin + static_cast<size_t>(*told)].toInt() >= 0) return;
  const bool by_mask = IsDynamicByMaskOnly(op.operator_name().name);
  for (const Operand& operand : operands) {
    const at::Tensor& t = operand.innermost;
    if (operand.axes == 0) continue;
    const bool is_mask = t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
    TORCH_CHECK(by_mask && !is_mask,
                "the shape of a result depends on a shard's values, but all devices run one "
                "program; use torch.where, or compute it outside of the region");
  }
}

// Makes the operands of an op vary along the same axes if they have gradients.
void MakeAlike(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack->size() - arguments.size();
  absl::InlinedVector<at::Tensor, 4> singles;
  absl::InlinedVector<std::pair<size_t, std::vector<at::Tensor>>, 1> lists;
  std::vector<Operand> operands;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[begin + i];
    const bool written =
        arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    if (value.isTensor()) {
      singles.push_back(value.toTensor());
      operands.push_back({Innermost(singles.back()), 0, written});
    } else if (value.isTensorList()) {
      lists.emplace_back(i, value.toTensorVector());
      for (const at::Tensor& t : lists.back().second) {
        operands.push_back({Innermost(t), 0, written});
      }
    } else if (value.isList()) {  // of optional tensors, which are indices
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) operands.push_back({Innermost(item.toTensor()), 0, written});
      }
    }
  }
  ManualAxes all = 0;
  bool alike = true;
  {
    const SessionLock lock;
    for (size_t k = 0; k < operands.size(); ++k) {
      CheckFromOutside(operands[k].innermost);
      operands[k].axes = AxesOf(operands[k].innermost);
      alike = alike && (k == 0 || operands[k].axes == operands[0].axes);
      all |= operands[k].axes;
    }
    if (all != 0) CheckShape(op, *stack, operands);
    if (alike || all == 0) return;
    for (const Operand& operand : operands) {
      const at::Tensor& t = operand.innermost;
      if (!operand.written || operand.axes == all || !t.defined() || !Buffer::IsOurs(t)) continue;
      if (Buffer::Of(t.storage())->holds_nothing()) continue;
      TORCH_CHECK(false,
                  "a value that does not vary along a manual axis is overwritten in place by "
                  "one that varies; make it vary first: x = spmd.lax.pvary(x, axis)");
    }
  }
  const auto vary = [&](const at::Tensor& t, const Operand& operand) {
    const ManualAxes missing = all & ~operand.axes;
    if (missing == 0 || operand.written || !t.defined()) return t;
    if (!Buffer::IsOurs(operand.innermost)) return t;
    const bool may_have_gradient = compat::IsOfLevel(t) || t.requires_grad();
    if (!may_have_gradient || !(t.is_floating_point() || t.is_complex())) return t;
    return Vary(t, missing);
  };
  size_t next = 0, list = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[begin + i];
    if (value.isTensor()) {
      at::Tensor t = vary(value.toTensor(), operands[next++]);
      if (!t.is_same(value.toTensor())) (*stack)[begin + i] = std::move(t);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = std::move(lists[list++].second);
      for (at::Tensor& t : tensors) t = vary(t, operands[next++]);
      (*stack)[begin + i] = c10::IValue(std::move(tensors));
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) next += item.isTensor() ? 1 : 0;
    }
  }
}

constexpr c10::DispatchKey kKey = compat::kRegionKey;

void InRegion(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  MakeAlike(op, stack);
  const compat::ExcludeDispatchKeyGuard below{c10::DispatchKeySet(kKey)};
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

}  // namespace

void EnterManual(const std::string& mesh, const std::vector<std::string>& axes, int64_t devices,
                 bool check) {
  entered_manual.push_back({mesh, axes, devices, check});
  compat::IncludeKey(kKey, true);
}

void LeaveManual() {
  entered_manual.pop_back();
  if (entered_manual.empty()) compat::IncludeKey(kKey, false);
}

std::vector<std::string> VariesAlong(const at::Tensor& t) {
  const at::Tensor innermost = Innermost(t);
  const SessionLock lock;
  return NamesOf(AxesOf(innermost));
}

void RegisterManualRegions(Unwrap of_level) {
  unwrap = new Unwrap(std::move(of_level));
  // Never destroyed: the dispatcher may outlive static objects of this library.
  auto* autograd = new torch::Library(torch::Library::IMPL, "spmd",
                                      c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("to_local", TORCH_FN(AtBorderWithGradient<true>));
  autograd->impl("to_global", TORCH_FN(AtBorderWithGradient<false>));
  auto* fallback = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
      kKey, c10::KernelFunction::makeFromBoxedFunction<&InRegion>(), "torch_spmd"));
  (void)fallback;
}

}  // namespace spmd::trace
