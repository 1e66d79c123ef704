// SPDX-License-Identifier: Apache-2.0
// Views. A view is a tensor on the same Storage, with the step that leads to it.
#include <ATen/native/Resize.h>

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// The step of an op from a tensor with dims `source` to one with dims `result`; nullopt if only
// strides can express it.
struct StepSpec {
  ViewOp op;
  std::vector<int64_t> ints;
};
using Args = std::vector<c10::IValue>;

int64_t Wrap(int64_t dim, int64_t rank) { return dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim; }

StepSpec Transposition(int64_t rank, int64_t a, int64_t b) {
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (rank > 0) std::swap(order[Wrap(a, rank)], order[Wrap(b, rank)]);
  return {ViewOp::kPermute, std::move(order)};
}

StepSpec Slice(const Dims& dims, int64_t dim, int64_t start, int64_t end, int64_t step) {
  dim = Wrap(dim, static_cast<int64_t>(dims.size()));
  const int64_t n = dims[dim];
  const auto clamp = [n](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + n : v, 0, n); };
  start = clamp(start);
  end = std::max(start, clamp(end));
  return {ViewOp::kSlice, {dim, start, end, step}};
}

// `k` is the number of the op's result.
std::optional<StepSpec> StepOf(const std::string& op, const Args& a, const Dims& dims, int k) {
  const int64_t rank = static_cast<int64_t>(dims.size());
  if (op == "aten::t" || op == "aten::t_") {
    return rank < 2 ? StepSpec{ViewOp::kReshape, {}} : Transposition(rank, 0, 1);
  }
  if (op == "aten::transpose" || op == "aten::transpose_") {
    return Transposition(rank, a[1].toInt(), a[2].toInt());
  }
  if (op == "aten::permute") {
    std::vector<int64_t> order = a[1].toIntVector();
    for (int64_t& d : order) d = Wrap(d, rank);
    return StepSpec{ViewOp::kPermute, std::move(order)};
  }
  if (op == "aten::select") {
    const int64_t dim = Wrap(a[1].toInt(), rank);
    const int64_t index = a[2].toInt();
    return StepSpec{ViewOp::kSelect, {dim, index < 0 ? index + dims[dim] : index}};
  }
  if (op == "aten::slice") {
    return Slice(dims, a[1].toInt(), a[2].isNone() ? 0 : a[2].toInt(),
                 a[3].isNone() ? INT64_MAX : a[3].toInt(), a[4].toInt());
  }
  if (op == "aten::split" || op == "aten::unsafe_split") {
    const int64_t size = a[1].toInt();
    return Slice(dims, a[2].toInt(), k * size, (k + 1) * size, 1);
  }
  if (op == "aten::split_with_sizes" || op == "aten::unsafe_split_with_sizes") {
    const std::vector<int64_t> sizes = a[1].toIntVector();
    const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + k, int64_t{0});
    return Slice(dims, a[2].toInt(), start, start + sizes[k], 1);
  }
  if (op == "aten::unbind") return StepSpec{ViewOp::kSelect, {Wrap(a[1].toInt(), rank), k}};
  if (op == "aten::diagonal") {
    return StepSpec{ViewOp::kDiagonal,
                    {a[1].toInt(), Wrap(a[2].toInt(), rank), Wrap(a[3].toInt(), rank)}};
  }
  if (op == "aten::unfold") {
    return StepSpec{ViewOp::kUnfold, {Wrap(a[1].toInt(), rank), a[2].toInt(), a[3].toInt()}};
  }
  if (op == "aten::expand") return StepSpec{ViewOp::kExpand, {}};
  if (op == "aten::view_as_real") return StepSpec{ViewOp::kViewAsReal, {}};
  if (op == "aten::view_as_complex") return StepSpec{ViewOp::kViewAsComplex, {}};
  if (op == "aten::view" && !a[1].isIntList()) return StepSpec{ViewOp::kBitcast, {}};
  if (op == "aten::view" || op == "aten::_unsafe_view" || op == "aten::_reshape_alias" ||
      op == "aten::squeeze" || op == "aten::squeeze_" || op == "aten::unsqueeze" ||
      op == "aten::unsqueeze_") {
    return StepSpec{ViewOp::kReshape, {}};
  }
  if (op == "aten::_conj") return StepSpec{ViewOp::kConj, {}};
  if (op == "aten::_neg_view") return StepSpec{ViewOp::kNeg, {}};
  return std::nullopt;
}

// Remembers the step from `source` to `view`, unless `view` is the base or its recipe is known.
void NoteRecipe(const at::Tensor& source, RecipePtr parent, const TensorType& source_type,
                const at::Tensor& view, std::optional<StepSpec> step) {
  Buffer* buffer = BufferOf(source);
  if (!step.has_value() || IsBase(buffer->form, view)) return;
  RecipePtr& slot = buffer->recipes.Slot(view);
  if (slot != nullptr) return;
  slot = std::make_shared<const Recipe>(
      Recipe{std::move(parent), step->op, std::move(step->ints), source_type, TypeOf(view)});
}

// Meta has no memory that a strided view could leave.
void CheckWithinStorage(const std::string& name, const at::Tensor& self, const TensorMeta& view) {
  if (name != "aten::as_strided" && name != "aten::as_strided_") return;
  at::native::checkInBoundsForStorage<int64_t>(
      at::IntArrayRef(view.sizes.data(), view.sizes.size()),
      at::IntArrayRef(view.strides.data(), view.strides.size()), view.offset, self.dtype(),
      self.storage());
}

void RunView(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const at::Tensor self = args[0].toTensor();
  const Inference& inferred = state.shapes.Infer(op, args);
  if (!inferred.ok) state.shapes.Refuse(op, args);
  const std::vector<TensorMeta> metas = inferred.tensors;
  const RecipePtr parent = RecipeOf(BufferOf(self), self);
  const TensorType source = TypeOf(self);
  const std::string& name = op.handle.operator_name().name;
  CheckWithinStorage(name, self, metas[0]);
  std::vector<at::Tensor> views;
  for (size_t k = 0; k < metas.size(); ++k) {
    at::Tensor view = NewView(self, metas[k]);
    const bool flip_conj = name == "aten::_conj", flip_neg = name == "aten::_neg_view";
    // The dispatch keys were copied with the tensor's.
    if (view.is_complex()) view._set_conj(self.is_conj() != flip_conj);
    view._set_neg(self.is_neg() != flip_neg);
    NoteRecipe(self, parent, source, view, StepOf(name, args, source.dims, static_cast<int>(k)));
    views.push_back(std::move(view));
  }
  torch::jit::drop(*stack, op.args.size());
  if (op.result_is_list[0]) {
    stack->push_back(c10::IValue(std::move(views)));
  } else {
    stack->push_back(c10::IValue(std::move(views[0])));
  }
}

// squeeze_, t_, … give the same tensor other sizes and strides.
void RunViewInPlace(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  const at::Tensor self = args[0].toTensor();
  const c10::OperatorName& name = op.handle.operator_name();
  std::string twin = name.name.substr(0, name.name.size() - 1);
  if (twin == "aten::transpose") twin += ".int";
  if (!name.overload_name.empty()) twin += "." + name.overload_name;
  const OpInfo& view_op = GetOp(twin);
  const Inference& inferred = state.shapes.Infer(view_op, args);
  if (!inferred.ok) state.shapes.Refuse(view_op, args);
  const TensorMeta meta = inferred.tensors[0];
  CheckWithinStorage(name.name, self, meta);
  const RecipePtr parent = RecipeOf(BufferOf(self), self);
  const TensorType source = TypeOf(self);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      at::IntArrayRef(meta.sizes.data(), meta.sizes.size()),
      at::IntArrayRef(meta.strides.data(), meta.strides.size()), meta.offset);
  NoteRecipe(self, parent, source, self,
             StepOf(op.handle.operator_name().name, args, source.dims, 0));
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(self);
}

// Returns the tensor itself.
void RunIdentity(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PopArguments(op, stack);
  stack->push_back(args[0]);
}

constexpr HandlerRow kRows[] = {
    {"aten::_conj", &RunView, kReplayable},
    {"aten::_neg_view", &RunView, kReplayable},
    {"aten::_reshape_alias", &RunView, kReplayable},
    {"aten::_unsafe_view", &RunView, kReplayable},
    {"aten::as_strided", &RunView, kReplayable},
    {"aten::as_strided_", &RunViewInPlace},
    {"aten::diagonal", &RunView, kReplayable},
    {"aten::expand", &RunView, kReplayable},
    {"aten::lift", &RunIdentity},
    {"aten::lift_fresh", &RunIdentity},
    {"aten::permute", &RunView, kReplayable},
    {"aten::select.int", &RunView, kReplayable},
    {"aten::slice.Tensor", &RunView, kReplayable},
    {"aten::split.Tensor", &RunView, kReplayable},
    {"aten::split_with_sizes", &RunView, kReplayable},
    {"aten::squeeze", &RunView, kReplayable},
    {"aten::squeeze.dim", &RunView, kReplayable},
    {"aten::squeeze.dims", &RunView, kReplayable},
    {"aten::squeeze_", &RunViewInPlace},
    {"aten::squeeze_.dim", &RunViewInPlace},
    {"aten::squeeze_.dims", &RunViewInPlace},
    {"aten::t", &RunView, kReplayable},
    {"aten::t_", &RunViewInPlace},
    {"aten::transpose.int", &RunView, kReplayable},
    {"aten::transpose_", &RunViewInPlace},
    {"aten::unbind.int", &RunView, kReplayable},
    {"aten::unfold", &RunView, kReplayable},
    // These are views of one storage, as on the CPU, that autograd treats as independent tensors.
    {"aten::unsafe_split.Tensor", &RunView, kReplayable},
    {"aten::unsafe_split_with_sizes", &RunView, kReplayable},
    {"aten::unsqueeze", &RunView, kReplayable},
    {"aten::unsqueeze_", &RunViewInPlace},
    {"aten::view", &RunView, kReplayable},
    {"aten::view.dtype", &RunView, kReplayable},
    {"aten::view_as_complex", &RunView, kReplayable},
    {"aten::view_as_real", &RunView, kReplayable},
};

}  // namespace

absl::Span<const HandlerRow> ViewHandlers() { return kRows; }

}  // namespace spmd::trace
