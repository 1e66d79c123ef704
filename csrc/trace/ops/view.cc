// SPDX-License-Identifier: Apache-2.0
// Views. A view is a tensor on the same Storage, with the step that leads to it.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/ops/strided_windows.h"
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

// The step to result k of an op's call on a tensor with dims `dims`; nullopt if only strides can
// express it.
using StepFn = std::optional<StepSpec> (*)(const Args& a, const Dims& dims, int k);

int64_t RankOf(const Dims& dims) { return static_cast<int64_t>(dims.size()); }

template <ViewOp op>
std::optional<StepSpec> Only(const Args&, const Dims&, int) {
  return StepSpec{op, {}};
}
std::optional<StepSpec> NoStep(const Args&, const Dims&, int) { return std::nullopt; }
std::optional<StepSpec> TStep(const Args&, const Dims& dims, int) {
  const int64_t rank = RankOf(dims);
  return rank < 2 ? StepSpec{ViewOp::kReshape, {}} : Transposition(rank, 0, 1);
}
std::optional<StepSpec> TransposeStep(const Args& a, const Dims& dims, int) {
  return Transposition(RankOf(dims), a[1].toInt(), a[2].toInt());
}
std::optional<StepSpec> PermuteStep(const Args& a, const Dims& dims, int) {
  std::vector<int64_t> order = a[1].toIntVector();
  for (int64_t& d : order) d = Wrap(d, RankOf(dims));
  return StepSpec{ViewOp::kPermute, std::move(order)};
}
std::optional<StepSpec> SelectStep(const Args& a, const Dims& dims, int) {
  const int64_t dim = Wrap(a[1].toInt(), RankOf(dims));
  const int64_t index = a[2].toInt();
  return StepSpec{ViewOp::kSelect, {dim, index < 0 ? index + dims[dim] : index}};
}
std::optional<StepSpec> SliceStep(const Args& a, const Dims& dims, int) {
  return Slice(dims, a[1].toInt(), a[2].isNone() ? 0 : a[2].toInt(),
               a[3].isNone() ? INT64_MAX : a[3].toInt(), a[4].toInt());
}
std::optional<StepSpec> SplitStep(const Args& a, const Dims& dims, int k) {
  const int64_t size = a[1].toInt();
  return Slice(dims, a[2].toInt(), k * size, (k + 1) * size, 1);
}
std::optional<StepSpec> SplitWithSizesStep(const Args& a, const Dims& dims, int k) {
  const std::vector<int64_t> sizes = a[1].toIntVector();
  const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + k, int64_t{0});
  return Slice(dims, a[2].toInt(), start, start + sizes[k], 1);
}
std::optional<StepSpec> UnbindStep(const Args& a, const Dims& dims, int k) {
  return StepSpec{ViewOp::kSelect, {Wrap(a[1].toInt(), RankOf(dims)), k}};
}
std::optional<StepSpec> DiagonalStep(const Args& a, const Dims& dims, int) {
  const int64_t rank = RankOf(dims);
  return StepSpec{ViewOp::kDiagonal,
                  {a[1].toInt(), Wrap(a[2].toInt(), rank), Wrap(a[3].toInt(), rank)}};
}
std::optional<StepSpec> UnfoldStep(const Args& a, const Dims& dims, int) {
  return StepSpec{ViewOp::kUnfold, {Wrap(a[1].toInt(), RankOf(dims)), a[2].toInt(), a[3].toInt()}};
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
void CheckWithinStorage(const at::Tensor& self, const TensorMeta& view) {
  at::native::checkInBoundsForStorage<int64_t>(
      at::IntArrayRef(view.sizes.data(), view.sizes.size()),
      at::IntArrayRef(view.strides.data(), view.strides.size()), view.offset, self.dtype(),
      self.storage());
}

// How a view differs from its operand besides the step: it is the conjugate, or the negative.
struct Flips {
  bool conj = false;
  bool neg = false;
};

void MakeViews(SessionState& state, const OpInfo& op, torch::jit::Stack* stack, StepFn step,
               Flips flips) {
  const Args args = PeekArguments(op, stack);
  const at::Tensor self = args[0].toTensor();
  const Inference& inferred = state.shapes.Infer(op, args);
  if (!inferred.ok) state.shapes.Refuse(op, args);
  const std::vector<TensorMeta> metas = inferred.tensors;
  const RecipePtr parent = RecipeOf(BufferOf(self), self);
  const TensorType source = TypeOf(self);
  if (step == NoStep) CheckWithinStorage(self, metas[0]);
  std::vector<at::Tensor> views;
  for (size_t k = 0; k < metas.size(); ++k) {
    at::Tensor view = NewView(self, metas[k]);
    // The dispatch keys were copied with the tensor's.
    if (view.is_complex()) compat::SetConj(view, self.is_conj() != flips.conj);
    compat::SetNeg(view, self.is_neg() != flips.neg);
    NoteRecipe(self, parent, source, view, step(args, source.dims, static_cast<int>(k)));
    views.push_back(std::move(view));
  }
  torch::jit::drop(*stack, op.args.size());
  if (op.result_is_list[0]) {
    stack->push_back(c10::IValue(std::move(views)));
  } else {
    stack->push_back(c10::IValue(std::move(views[0])));
  }
}

template <StepFn Step, bool FlipsConj = false, bool FlipsNeg = false>
void RunView(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  MakeViews(state, op, stack, Step, {FlipsConj, FlipsNeg});
}

// Under inference_mode no kernel above has looked for slices.
void RunAsStrided(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PeekArguments(op, stack);
  std::optional<at::Tensor> slices;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    slices = AsSlices(args[0].toTensor(), args[1].toIntVector(), args[2].toIntVector(),
                      args[3].toOptional<int64_t>());
  }
  if (!slices.has_value()) return MakeViews(state, op, stack, NoStep, {});
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(*std::move(slices));
}

// squeeze_, t_, … give the same tensor other sizes and strides, as `view_op` would.
void ChangeInPlace(SessionState& state, const OpInfo& op, torch::jit::Stack* stack,
                   const OpInfo& view_op, StepFn step) {
  const Args args = PeekArguments(op, stack);
  const at::Tensor self = args[0].toTensor();
  const Inference& inferred = state.shapes.Infer(view_op, args);
  if (!inferred.ok) state.shapes.Refuse(view_op, args);
  const TensorMeta meta = inferred.tensors[0];
  if (step == NoStep) CheckWithinStorage(self, meta);
  const RecipePtr parent = RecipeOf(BufferOf(self), self);
  const TensorType source = TypeOf(self);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      at::IntArrayRef(meta.sizes.data(), meta.sizes.size()),
      at::IntArrayRef(meta.strides.data(), meta.strides.size()), meta.offset);
  NoteRecipe(self, parent, source, self, step(args, source.dims, 0));
  torch::jit::drop(*stack, op.args.size());
  stack->push_back(self);
}

template <const char* View, StepFn Step>
void RunViewInPlace(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  static const OpInfo& view_op = GetOp(View);
  ChangeInPlace(state, op, stack, view_op, Step);
}

// Returns the tensor itself.
void RunIdentity(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const Args args = PopArguments(op, stack);
  stack->push_back(args[0]);
}

// The ops whose result the ops in place give their operand.
constexpr char kAsStrided[] = "aten::as_strided";
constexpr char kSqueeze[] = "aten::squeeze";
constexpr char kSqueezeDim[] = "aten::squeeze.dim";
constexpr char kSqueezeDims[] = "aten::squeeze.dims";
constexpr char kT[] = "aten::t";
constexpr char kTransposeInt[] = "aten::transpose.int";
constexpr char kUnsqueeze[] = "aten::unsqueeze";

constexpr HandlerRow kViewHandlers[] = {
    {"aten::_conj", &RunView<Only<ViewOp::kConj>, true>, kReplayable},
    {"aten::_neg_view", &RunView<Only<ViewOp::kNeg>, false, true>, kReplayable},
    {"aten::_reshape_alias", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::_unsafe_view", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::as_strided", &RunAsStrided, kReplayable},
    {"aten::as_strided_", &RunViewInPlace<kAsStrided, NoStep>},
    {"aten::diagonal", &RunView<DiagonalStep>, kReplayable},
    {"aten::expand", &RunView<Only<ViewOp::kExpand>>, kReplayable},
    {"aten::lift", &RunIdentity},
    {"aten::lift_fresh", &RunIdentity},
    {"aten::permute", &RunView<PermuteStep>, kReplayable},
    {"aten::select.int", &RunView<SelectStep>, kReplayable},
    {"aten::slice.Tensor", &RunView<SliceStep>, kReplayable},
    {"aten::split.Tensor", &RunView<SplitStep>, kReplayable},
    {"aten::split_with_sizes", &RunView<SplitWithSizesStep>, kReplayable},
    {"aten::squeeze", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::squeeze.dim", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::squeeze.dims", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::squeeze_", &RunViewInPlace<kSqueeze, Only<ViewOp::kReshape>>},
    {"aten::squeeze_.dim", &RunViewInPlace<kSqueezeDim, Only<ViewOp::kReshape>>},
    {"aten::squeeze_.dims", &RunViewInPlace<kSqueezeDims, Only<ViewOp::kReshape>>},
    {"aten::t", &RunView<TStep>, kReplayable},
    {"aten::t_", &RunViewInPlace<kT, TStep>},
    {"aten::transpose.int", &RunView<TransposeStep>, kReplayable},
    {"aten::transpose_", &RunViewInPlace<kTransposeInt, TransposeStep>},
    {"aten::unbind.int", &RunView<UnbindStep>, kReplayable},
    {"aten::unfold", &RunView<UnfoldStep>, kReplayable},
    // These are views of one storage, as on the CPU, that autograd treats as independent tensors.
    {"aten::unsafe_split.Tensor", &RunView<SplitStep>, kReplayable},
    {"aten::unsafe_split_with_sizes", &RunView<SplitWithSizesStep>, kReplayable},
    {"aten::unsqueeze", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::unsqueeze_", &RunViewInPlace<kUnsqueeze, Only<ViewOp::kReshape>>},
    {"aten::view", &RunView<Only<ViewOp::kReshape>>, kReplayable},
    {"aten::view.dtype", &RunView<Only<ViewOp::kBitcast>>, kReplayable},
    {"aten::view_as_complex", &RunView<Only<ViewOp::kViewAsComplex>>, kReplayable},
    {"aten::view_as_real", &RunView<Only<ViewOp::kViewAsReal>>, kReplayable},
};
static_assert(IsSortedAndUnique(kViewHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> ViewHandlers() { return kViewHandlers; }

}  // namespace spmd::trace
