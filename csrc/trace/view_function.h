// SPDX-License-Identifier: Apache-2.0
// Makes a view again from the root of its views. PyTorch asks for this when one of them has been
// written in grad mode.
//
// PyTorch chains its own functions by copying all of them, each with its inverse, for every view of
// a view. The steps here share the steps before them.
#pragma once

#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace spmd::trace {

// One op from a tensor to a view of it, with the steps before. Immutable.
class ViewStep : public c10::intrusive_ptr_target {
 public:
  using Pointer = c10::intrusive_ptr<const ViewStep>;
  explicit ViewStep(Pointer before) : before_(std::move(before)) {}
  // Ends the steps without recursion, as in FromRoot, since there may be many views of views.
  ~ViewStep() override {
    Pointer last = std::move(before_);
    while (last != nullptr && last.use_count() == 1) last = std::move(last->before_);
  }
  at::Tensor FromRoot(const at::Tensor& root) const {
    std::vector<const ViewStep*> steps;
    for (const ViewStep* step = this; step != nullptr; step = step->before_.get()) {
      steps.push_back(step);
    }
    at::Tensor view = root;
    for (; !steps.empty(); steps.pop_back()) view = steps.back()->Take(view);
    return view;
  }

 private:
  virtual at::Tensor Take(const at::Tensor& source) const = 0;

  mutable Pointer before_;
};

// The form in which an argument is kept: lists by value, as plain numbers.
template <typename T>
struct Kept {
  using Type = T;
  static bool CanKeep(const T&) { return true; }
  static const T& Keep(const T& arg) { return arg; }
  static const T& Give(const Type& kept) { return kept; }
};
template <>
struct Kept<at::IntArrayRef> {
  using Type = c10::SmallVector<int64_t, 5>;
  static bool CanKeep(at::IntArrayRef) { return true; }
  static Type Keep(at::IntArrayRef ints) { return {ints.begin(), ints.end()}; }
  static at::IntArrayRef Give(const Type& kept) { return kept; }
};
template <>
struct Kept<c10::SymIntArrayRef> {
  using Type = c10::SmallVector<int64_t, 5>;
  static bool CanKeep(c10::SymIntArrayRef ints) {
    return c10::asIntArrayRefSlowOpt(ints).has_value();
  }
  static Type Keep(c10::SymIntArrayRef ints) {
    return Kept<at::IntArrayRef>::Keep(C10_AS_INTARRAYREF_SLOW(ints));
  }
  static c10::SymIntArrayRef Give(const Type& kept) { return c10::fromIntArrayRefSlow(kept); }
};

template <typename Op, typename... Args>
class ViewStepOf final : public ViewStep {
 public:
  ViewStepOf(Pointer before, const Args&... args)
      : ViewStep(std::move(before)), args_(Kept<Args>::Keep(args)...) {}

 private:
  at::Tensor Take(const at::Tensor& source) const override {
    return std::apply(
        [&](const auto&... kept) { return Op::call(source, Kept<Args>::Give(kept)...); }, args_);
  }

  std::tuple<typename Kept<Args>::Type...> args_;
};

// The op that returns one of several views that `Op` makes at once.
template <typename Op>
struct PartOf {
  template <typename... Args>
  static at::Tensor call(const at::Tensor& source, size_t part, const Args&... args) {
    return Op::call(source, args...)[part];
  }
};

// The steps in the form in which PyTorch keeps them.
class ViewFunction final : public torch::autograd::ViewFunc {
 public:
  explicit ViewFunction(ViewStep::Pointer steps) : steps_(std::move(steps)) {}
  const ViewStep::Pointer& steps() const { return steps_; }
  at::Tensor operator()(const at::Tensor& root) const override { return steps_->FromRoot(root); }
  std::unique_ptr<torch::autograd::ViewFunc> clone_and_set(
      std::optional<std::vector<c10::SymInt>> = std::nullopt,
      std::optional<std::vector<at::Tensor>> = std::nullopt) const override {
    return std::make_unique<ViewFunction>(steps_);  // there is nothing to set
  }

 private:
  ViewStep::Pointer steps_;
};

// Only torch.Tensor._rev_view_func_unsafe asks for the inverse of a view.
inline at::Tensor NoInverse(const at::Tensor&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "torch_spmd: views on the device have no inverse "
                              "(_rev_view_func_unsafe)");
}

// Makes `made`, a new tensor on the storage of `self`, a view of `self` for autograd, as
// torch::autograd::as_view does: a view by `Op` with `args`, in grad mode.
template <typename Op, typename... Args>
void NoteView(const at::Tensor& self, const at::Tensor& made,
              torch::autograd::CreationMeta creation, const Args&... args) {
  namespace autograd = torch::autograd;
  const auto* const of_self = autograd::impl::get_view_autograd_meta(self);
  const auto by_steps = [&](ViewStep::Pointer before) {
    return std::make_unique<ViewFunction>(
        c10::make_intrusive<ViewStepOf<Op, Args...>>(std::move(before), args...));
  };
  const at::Tensor* root = &self;
  ViewStep::Pointer before;
  if (of_self != nullptr) {
    const autograd::ViewInfo* const info =
        of_self->shared_view_info() ? &of_self->get_backward_view() : nullptr;
    const auto* const function = info != nullptr && info->has_view_fn()
                                     ? dynamic_cast<const ViewFunction*>(&info->view_fn())
                                     : nullptr;
    if (function == nullptr) {
      // PyTorch made this view and can continue from it.
      autograd::as_view(self, made, /*is_bw_differentiable=*/true, /*is_fw_differentiable=*/true,
                        by_steps(nullptr), NoInverse, creation);
      return;
    }
    root = &info->base_;
    before = function->steps();
    creation = autograd::propagate_creation_meta(of_self->get_creation_meta(), creation);
  }
  autograd::make_variable_differentiable_view(
      made, autograd::ViewInfo(*root, by_steps(std::move(before)), NoInverse), std::nullopt,
      /*shared_view_info=*/true, creation);
}

}  // namespace spmd::trace
