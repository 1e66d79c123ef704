// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/tensor_layout.h"

#include <memory>
#include <utility>

#include "csrc/partition/compile.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/compile.h"
#include "csrc/trace/run/end_of_step.h"
#include "csrc/trace/run/pending_graph.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// Replaces the tape while it lives.
class Aside {
 public:
  explicit Aside(SessionState& state)
      : state_(state), tape_(std::exchange(state.tape, NewTape(state))) {}
  ~Aside() { state_.tape = std::move(tape_); }
  Aside(const Aside&) = delete;

 private:
  SessionState& state_;
  std::unique_ptr<Tape> tape_;
};

// The layout of a view that no permutation makes: the one that the partitioner gives the view's ops
// if the base has the layout `base`. Compiles a program of them, and does not run it.
absl::StatusOr<Layout> ThroughOps(SessionState& state, const Layout& base, const BaseForm& form,
                                  const at::Tensor& view) {
  const Aside aside(state);
  TensorMeta meta =
      TensorMeta::Contiguous(form.dtype, at::IntArrayRef(form.sizes.data(), form.sizes.size()));
  meta.strides = form.strides;
  Fresh stand_in = NewMemory(meta);
  stand_in.buffer->Hold(c10::make_intrusive<Value>(TypeOf(meta)));
  stand_in.buffer->settled = std::make_shared<const Layout>(base);
  TensorMeta shape = TensorMeta::Of(view);
  const at::Tensor same = NewView(stand_in.tensor, shape);
  if (view.is_complex()) compat::SetConj(same, view.is_conj());
  compat::SetNeg(same, view.is_neg());
  Buffer* const own = BufferOf(view);
  stand_in.buffer->recipes.Slot(same) = RecipeOf(own, view);
  const TapeId id = Read(state, same);
  Tape& tape = *state.tape;
  tape.StopFollowing();
  const std::vector<OutputSpec> outputs = {OutputSpec{id}};
  SPMD_ASSIGN_OR_RETURN(const Lowered lowered, LowerTape(state, tape, outputs));
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled,
                        partition::Compile(lowered.graph, CompileOptionsFor(state, *backend)));
  return compiled.program.LayoutOf(compiled.program.outputs[0].value);
}

absl::StatusOr<Layout> ThroughView(SessionState& state, const Layout& base, Buffer* buffer,
                                   const at::Tensor& tensor) {
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  if (recipe == nullptr) return base;
  const auto dims = BaseDims(recipe, buffer->form.sizes);
  if (!dims.has_value()) {
    if (base.sharding().IsReplicated()) {
      return Layout(base.grid(), Sharding::Replicated(static_cast<int>(tensor.dim())),
                    Dims(tensor.sizes().begin(), tensor.sizes().end()));
    }
    return ThroughOps(state, base, buffer->form, tensor);
  }
  Sharding sharding = base.sharding();
  sharding.dims.clear();
  for (const int d : *dims) {
    sharding.dims.push_back(d >= 0 ? base.sharding().dims[d] : DimSharding());
  }
  return Layout(base.grid(), std::move(sharding),
                Dims(tensor.sizes().begin(), tensor.sizes().end()));
}

}  // namespace

absl::StatusOr<Layout> LayoutOfMark(SessionState& state, const Mark& mark, const Dims& dims) {
  const MeshSet set = state.meshes.SetOf({mark.mesh});
  SPMD_ASSIGN_OR_RETURN(ir::Annotation a, AnnotationOf(mark, static_cast<int>(dims.size()),
                                                       {&set.meshes, &set.grids}));
  return Layout(set.grids.grids[a.grid], a.sharding.Closed(), dims);
}

Layout LayoutOfNew(SessionState& state, const Dims& dims) {
  std::vector<Mesh> latest;
  if (state.meshes.latest().has_value()) latest.push_back(*state.meshes.latest());
  return Layout(state.meshes.SetOf(latest).grids.grids[0],
                Sharding::Replicated(static_cast<int>(dims.size())), dims);
}

absl::StatusOr<std::optional<TensorLayout>> LayoutOfTensor(SessionState& state,
                                                           const at::Tensor& tensor) {
  Buffer* const buffer = BufferOf(tensor);
  const bool pending = buffer->pending();
  const MarkNotes* const notes = NotesOf(*buffer);
  if (notes != nullptr && !notes->parts.empty()) {
    // A marked part has its own mark's layout, whatever the rest has.
    if (const MarkPtr own = MarkOf(tensor)) {
      const Dims dims(tensor.sizes().begin(), tensor.sizes().end());
      SPMD_ASSIGN_OR_RETURN(const Layout layout, LayoutOfMark(state, *own, dims));
      return TensorLayout{layout, pending};
    }
  }
  const ValuePtr value = buffer->holds_nothing() ? nullptr : buffer->value();
  std::optional<Layout> base;
  if (value != nullptr && !pending && value->layout != nullptr) {
    base = *value->layout;
  } else if (buffer->mark != nullptr) {
    SPMD_ASSIGN_OR_RETURN(base, LayoutOfMark(state, *buffer->mark, buffer->form.sizes));
  } else if (pending) {
    SPMD_ASSIGN_OR_RETURN(base, ProvisionalLayout(state, value->id));
  } else {
    return std::nullopt;
  }
  SPMD_ASSIGN_OR_RETURN(const Layout layout, ThroughView(state, *base, buffer, tensor));
  return TensorLayout{layout, pending};
}

absl::StatusOr<std::vector<DeviceBox>> DeviceBoxes(const at::Tensor& tensor) {
  SessionLock lock;
  SPMD_RETURN_IF_ERROR(RunWaitingStep(*lock));
  SPMD_ASSIGN_OR_RETURN(const std::optional<TensorLayout> found, LayoutOfTensor(*lock, tensor));
  const Dims dims(tensor.sizes().begin(), tensor.sizes().end());
  return BoxesOfLayout(found.has_value() ? found->layout : LayoutOfNew(*lock, dims));
}

std::vector<DeviceBox> BoxesOfLayout(const Layout& layout) {
  std::vector<DeviceBox> boxes;
  for (int64_t p = 0; p < layout.grid()->num_devices(); ++p) {
    boxes.push_back({layout.grid()->device_ids()[p], layout.BoxAt(p)});
  }
  return boxes;
}

}  // namespace spmd::trace
