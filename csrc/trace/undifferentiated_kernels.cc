// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/undifferentiated_kernels.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/unboxed_ops.h"

namespace spmd::trace {

namespace {

enum class Effect { kFresh, kView, kWrite };

// True when PyTorch's kernel has something to do for an argument: a gradient or a tangent.
template <typename T>
bool IsDifferentiated(const T& arg, bool grad_mode) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    const c10::TensorImpl* const impl = arg.unsafeGetTensorImpl();
    if (impl->autograd_meta() == nullptr) return false;
    return (grad_mode && arg.requires_grad()) || arg._fw_grad(/*level=*/0).defined();
  } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
    return arg.has_value() && IsDifferentiated(*arg, grad_mode);
  } else {
    return false;
  }
}

// A view made without grad mode is never differentiated through, so nobody asks how it was made.
class NoViewFunctions {
 public:
  NoViewFunctions() : before_(state_.get_view_replay_enabled()) {
    state_.set_view_replay_enabled(false);
  }
  ~NoViewFunctions() { state_.set_view_replay_enabled(before_); }
  NoViewFunctions(const NoViewFunctions&) = delete;

 private:
  c10::AutogradState& state_ = c10::AutogradState::get_tls_state();
  const bool before_;
};

template <typename Op, Effect effect, typename Schema = typename Op::schema>
class Kernel;

template <typename Op, Effect effect, typename Result, typename... Args>
class Kernel<Op, effect, Result(Args...)> final : public c10::OperatorKernel {
 public:
  Result operator()(c10::DispatchKeySet keys, Args... args) {
    const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
    if ((IsDifferentiated(args, grad_mode) || ...)) {
      // PyTorch's own kernel is that of every autograd key that has no other. `keys` may hold keys
      // above ours, which have been here already.
      return Op::redispatch(
          (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther),
          std::forward<Args>(args)...);
    }
    if constexpr (effect == Effect::kFresh) {
      const at::AutoDispatchBelowADInplaceOrView below;
      return Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, std::forward<Args>(args)...);
    } else {
      const at::AutoDispatchBelowAutograd below;
      std::optional<NoViewFunctions> no_functions;
      if (effect == Effect::kView && !grad_mode) no_functions.emplace();
      return Op::redispatch(keys & c10::after_autograd_keyset, std::forward<Args>(args)...);
    }
  }
};

template <typename Op>
c10::KernelFunction Make(const OpInfo& op) {
  const auto of = []<Effect effect>() {
    using K = Kernel<Op, effect>;
    return c10::KernelFunction::makeFromUnboxedFunctor<false, K>(std::make_unique<K>());
  };
  if (op.is_view) return of.template operator()<Effect::kView>();
  if (!op.written.empty()) return of.template operator()<Effect::kWrite>();
  return of.template operator()<Effect::kFresh>();
}

using Table = absl::flat_hash_map<std::string, c10::KernelFunction (*)(const OpInfo&)>;

template <typename... Op>
Table TableOf(OpList<Op...>) {
  Table table;
  const auto name = [](const std::string& base, const std::string& overload) {
    return overload.empty() ? base : absl::StrCat(base, ".", overload);
  };
  (table.emplace(name(Op::name, Op::overload_name), &Make<Op>), ...);
  return table;
}

}  // namespace

std::optional<c10::KernelFunction> UndifferentiatedKernel(const OpInfo& op) {
  static const Table table = TableOf(UnboxedOps());
  const auto it = table.find(op.name);
  if (it == table.end()) return std::nullopt;
  // PyTorch's kernel is one for all devices, and this one gives way to it.
  if (!op.handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
      op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
      op.name == "aten::copy_") {
    return std::nullopt;
  }
  return it->second(op);
}

}  // namespace spmd::trace
