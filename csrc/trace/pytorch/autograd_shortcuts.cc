// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/pytorch/autograd_shortcuts.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/dispatch/unboxed_call.h"
#include "csrc/trace/dispatch/unboxed_ops.h"
#include "csrc/trace/op/op_traits.h"
#include "csrc/trace/pytorch/check_nodes.h"
#include "csrc/trace/pytorch/derivatives.h"
#include "csrc/trace/pytorch/make_node.h"
#include "csrc/trace/pytorch/view_function.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/trace/value/buffer.h"

namespace spmd::trace {

namespace {

using autograd::AutogradMeta;

enum class Effect { kFresh, kView, kWrite };

// True if a tensor may have a tangent: its own, or that of the tensor that it is a view of.
bool MayHaveTangent(const AutogradMeta& meta) {
  if (meta.fw_grad_ != nullptr) return true;
  if (!meta.is_view_) return false;
  const auto& view = static_cast<const autograd::DifferentiableViewMeta&>(meta);
  if (!view.has_fw_view()) return false;
  const AutogradMeta* const base = MetaOf(view.get_forward_view().base_);
  return base != nullptr && base->fw_grad_ != nullptr;
}

}  // namespace

bool IsNext(c10::DispatchKeySet keys) {
  constexpr c10::DispatchKeySet kBetween =
      c10::after_ADInplaceOrView_keyset - c10::DispatchKeySet(c10::DispatchKey::Dense);
  return ((keys & kBetween).raw_repr() & ~c10::full_backend_mask) == 0;
}

bool IsNextOfTracked(c10::DispatchKeySet keys) {
  return IsNext(keys) && keys.has(c10::DispatchKey::ADInplaceOrView);
}

c10::DispatchKeySet ToPyTorchsKernel(c10::DispatchKeySet keys) {
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

bool IsPlain(const at::Tensor& t) {
  // Every thread includes BackendSelect, which is about ops that create tensors from none.
  const c10::DispatchKeySet keys =
      c10::impl::computeDispatchKeySet(t.key_set(),
                                       c10::DispatchKeySet(c10::DispatchKeySet::FULL)) -
      c10::autocast_dispatch_keyset - c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  return keys.highestPriorityTypeId() == c10::DispatchKey::AutogradPrivateUse1 && IsNext(keys) &&
         !HasTangent(t);
}

bool HasTangent(const at::Tensor& t) {
  const AutogradMeta* const meta = MetaOf(t);
  return meta != nullptr && MayHaveTangent(*meta) && t._fw_grad(/*level=*/0).defined();
}

namespace {

// What autograd has to do for the arguments of a call.
struct Differentiated {
  bool gradient = false, tangent = false;

  template <typename T>
  void Look(const T& arg) {
    if constexpr (kIsTensor<T>) {
      const AutogradMeta* const meta = MetaOf(arg);
      if (meta == nullptr) return;
      gradient = gradient || meta->requires_grad();
      tangent = tangent || HasTangent(arg);
    } else if constexpr (kIsOptionalTensor<T>) {
      if (arg.has_value()) Look(*arg);
    } else if constexpr (kIsTensors<T>) {
      for (const at::Tensor& t : arg) Look(t);
    }
  }
};

// While it lives, views do not note how they were made. A view that is made without grad mode is
// never differentiated through, so this is not needed.
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

void CountWrite(const at::Tensor& written) { autograd::increment_version(written); }
void CountWrite(at::TensorList written) { CountWrites(written); }

template <typename Op, Effect effect, typename Schema = typename Op::schema>
class Kernel;

template <typename Op, Effect effect, typename Result, typename... Args>
class Kernel<Op, effect, Result(Args...)> final : public c10::OperatorKernel {
 public:
  explicit Kernel(const OpInfo* op) : op_(op) {}

  Result operator()(c10::DispatchKeySet keys, Args... args) {
    Differentiated differentiated;
    (differentiated.Look(args), ...);
    const bool grad_mode = c10::AutogradState::get_tls_state().get_grad_mode();
    const bool gradient = grad_mode && differentiated.gradient;
    if (!differentiated.tangent) {
      if constexpr (effect == Effect::kView) {
        std::optional<Result> views = MakeView(keys, gradient, grad_mode, args...);
        if (views.has_value()) return *std::move(views);
      } else if constexpr (Derivative<Op>::kKnown && effect == Effect::kFresh) {
        if (gradient) return WithNode(keys, args...);
      }
    }
    if (gradient || differentiated.tangent) {
      return Op::redispatch(ToPyTorchsKernel(keys), std::forward<Args>(args)...);
    }
    if constexpr (effect == Effect::kFresh) {
      return Below(keys, args...);
    } else {
      if constexpr (effect == Effect::kWrite) {
        if constexpr (std::is_void_v<Result>) CheckWritable(FirstOf(args...));
        Made<Result> made;
        if (IsNextOfTracked(keys) && ReplayCall<Result>(*op_, made, args...)) {
          CountWrite(FirstOf(args...));
          return Returned<Result>(made, args...);
        }
      }
      const at::AutoDispatchBelowAutograd below;
      std::optional<NoViewFunctions> no_functions;
      if (effect == Effect::kView && !grad_mode) no_functions.emplace();
      return Op::redispatch(keys & c10::after_autograd_keyset, std::forward<Args>(args)...);
    }
  }

 private:
  // Calls an op that makes a new tensor.
  Result Below(c10::DispatchKeySet keys, Args... args) {
    Made<Result> made;
    if (IsNext(keys) && ReplayCall<Result>(*op_, made, args...)) {
      return Returned<Result>(made, args...);
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    return Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, std::forward<Args>(args)...);
  }

  // Makes views of the first argument as PyTorch's kernels do; nullopt if those must make them.
  template <typename... Rest>
  std::optional<Result> MakeView(c10::DispatchKeySet keys, bool gradient, bool grad_mode,
                                 const at::Tensor& self, const Rest&... rest) {
    if (!IsNextOfTracked(keys) || self.is_inference()) return std::nullopt;
    if constexpr (Derivative<Op>::kKnown) {
      if (grad_mode) return MakeViewWithFunction(keys, gradient, self, rest...);
    }
    Result made;
    if (grad_mode || !ReplayCall<Result>(*op_, made, self, rest...)) return std::nullopt;
    const auto creation = c10::InferenceMode::is_enabled() ? autograd::CreationMeta::INFERENCE_MODE
                                                           : autograd::CreationMeta::NO_GRAD_MODE;
    const auto note = [&](at::Tensor& view) {
      view = autograd::as_view(self, view, /*is_bw_differentiable=*/true,
                               /*is_fw_differentiable=*/true, nullptr, nullptr, creation);
    };
    if constexpr (kIsTensor<Result>) {
      note(made);
    } else {
      for (at::Tensor& view : made) note(view);
    }
    return made;
  }

  // Serves recorded and replayed calls, since PyTorch's kernels take longer the more views came
  // before.
  template <typename... Rest>
  std::optional<Result> MakeViewWithFunction(c10::DispatchKeySet keys, bool gradient,
                                             const at::Tensor& self, const Rest&... rest) {
    using D = Derivative<Op>;
    if (!Buffer::IsOurs(self) || !(Kept<Rest>::CanKeep(rest) && ...)) return std::nullopt;
    decltype(NewNode<typename D::Node>({})) node;
    if (gradient) {
      node = NewNode<typename D::Node>(EdgesOf(self));
      D::Save(*node, self, rest...);
    }
    const Result made = Below(keys, self, rest...);
    if constexpr (kIsTensor<Result>) {
      NoteView<Op>(self, made, autograd::CreationMeta::DEFAULT, rest...);
    } else {
      for (size_t k = 0; k < made.size(); ++k) {
        NoteView<PartOf<Op>>(self, made[k], autograd::CreationMeta::MULTI_OUTPUT_NODE, k, rest...);
      }
    }
    if (gradient) autograd::set_history(made, node);
    return made;
  }

  Result WithNode(c10::DispatchKeySet keys, Args... args) {
    return CallWithNode<Op>([&](const auto&... same) { return Below(keys, same...); }, args...)
        .result;
  }

  const OpInfo* op_;
};

template <typename Op>
c10::KernelFunction Make(const OpInfo& op) {
  const auto of = [&op]<Effect effect>() {
    using K = Kernel<Op, effect>;
    return c10::KernelFunction::makeFromUnboxedFunctor<false, K>(std::make_unique<K>(&op));
  };
  using Result = typename c10::guts::infer_function_traits_t<typename Op::schema>::return_type;
  if constexpr (kWritesFirst<Result>) {
    return of.template operator()<Effect::kWrite>();
  } else if constexpr (kIsTensorVector<Result> && Derivative<Op>::kKnown) {
    return of.template operator()<Effect::kView>();  // parts of a tensor
  } else {
    if constexpr (kIsTensor<Result>) {
      if (op.is_view) return of.template operator()<Effect::kView>();
    }
    return of.template operator()<Effect::kFresh>();
  }
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

const Table& TheTable() {
  static const Table table = TableOf(UnboxedOps());
  return table;
}

}  // namespace

bool ShortcutsAreOn() {
  static const bool on = [] {
    SessionLock lock;
    return lock->options.shortcuts && IsVerifiedVersion();
  }();
  return on;
}

c10::KernelFunction AutogradKernelOf(const OpInfo& op) { return TheTable().at(op.name)(op); }

std::optional<c10::KernelFunction> AutogradShortcut(const OpInfo& op) {
  if (!ShortcutsAreOn()) return std::nullopt;
  const auto it = TheTable().find(op.name);
  if (it == TheTable().end() || !op.handle.hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
      KeepsAutogradKernel(op.handle.operator_name().name) || NodeDiffers(op.name)) {
    return std::nullopt;
  }
  return it->second(op);
}

std::vector<std::string> OpsWithShortcut() {
  std::vector<std::string> ops;
  for (const auto& [name, make] : TheTable()) {
    const OpInfo* const op = FindOp(name);
    if (op != nullptr && AutogradShortcut(*op).has_value()) ops.push_back(name);
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

}  // namespace spmd::trace
