// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tensor.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/TensorImpl.h>

#include "csrc/runtime/one_place/tile_memory.h"
#include "csrc/trace/device.h"
#include "csrc/trace/marks.h"
#include "csrc/trace/status_to_exception.h"
#include "csrc/trace/tensor_impl.h"

namespace spmd::trace {

namespace {

c10::IValue Ints(std::vector<int64_t> v) { return c10::IValue(std::move(v)); }
std::vector<int64_t> Vec(const Dims& d) { return {d.begin(), d.end()}; }

// The numbers of the elements that a strided view shows, as an input of the tape.
TapeId StridedIndex(Session::State& state, const Recipe& step) {
  const int64_t n = step.source.dims[0];
  const at::Tensor index =
      at::arange(n, at::kLong)
          .as_strided(Vec(step.result.dims), at::IntArrayRef(step.ints).slice(1), step.ints[0])
          .contiguous();
  return state.tape->Use(HostValue(index, /*steal=*/true), nullptr);
}

TapeId StepForward(Session::State& state, const Recipe& step, TapeId x) {
  const std::vector<int64_t>& i = step.ints;
  const TensorType& r = step.result;
  switch (step.op) {
    case ViewOp::kPermute:
      return EmitNamed(state, "aten::permute", {x}, {{"dims", Ints(i)}}, r);
    case ViewOp::kReshape:
      return EmitNamed(state, "aten::view", {x}, {{"size", Ints(Vec(r.dims))}}, r);
    case ViewOp::kExpand:
      return EmitNamed(state, "aten::expand", {x}, {{"size", Ints(Vec(r.dims))}}, r);
    case ViewOp::kSlice:
      return EmitNamed(state, "aten::slice.Tensor", {x},
                       {{"dim", i[0]}, {"start", i[1]}, {"end", i[2]}, {"step", i[3]}}, r);
    case ViewOp::kSelect:
      return EmitNamed(state, "aten::select.int", {x}, {{"dim", i[0]}, {"index", i[1]}}, r);
    case ViewOp::kDiagonal:
      return EmitNamed(state, "aten::diagonal", {x},
                       {{"offset", i[0]}, {"dim1", i[1]}, {"dim2", i[2]}}, r);
    case ViewOp::kUnfold:
      return EmitNamed(state, "aten::unfold", {x},
                       {{"dimension", i[0]}, {"size", i[1]}, {"step", i[2]}}, r);
    case ViewOp::kBitcast:
      return EmitNamed(state, "aten::view.dtype", {x},
                       {{"dtype", static_cast<int64_t>(runtime::ToScalarType(r.dtype))}}, r);
    case ViewOp::kViewAsReal:
      return EmitNamed(state, "aten::view_as_real", {x}, {}, r);
    case ViewOp::kViewAsComplex:
      return EmitNamed(state, "aten::view_as_complex", {x}, {}, r);
    case ViewOp::kConj:
      return EmitNamed(state, "aten::conj_physical", {x}, {}, r);
    case ViewOp::kNeg:
      return EmitNamed(state, "aten::neg", {x}, {}, r);
    case ViewOp::kStrided:
      return EmitNamed(state, "aten::take", {x, StridedIndex(state, step)}, {}, r);
  }
  return kNoId;
}

// `into` is the old value, for steps that are not bijections.
TapeId StepBackward(Session::State& state, const Recipe& step, TapeId into, TapeId x) {
  const std::vector<int64_t>& i = step.ints;
  const TensorType& s = step.source;
  switch (step.op) {
    case ViewOp::kPermute: {
      std::vector<int64_t> inverse(i.size());
      for (size_t d = 0; d < i.size(); ++d) inverse[i[d]] = static_cast<int64_t>(d);
      return EmitNamed(state, "aten::permute", {x}, {{"dims", Ints(inverse)}}, s);
    }
    case ViewOp::kReshape:
      return EmitNamed(state, "aten::view", {x}, {{"size", Ints(Vec(s.dims))}}, s);
    case ViewOp::kBitcast:
      return EmitNamed(state, "aten::view.dtype", {x},
                       {{"dtype", static_cast<int64_t>(runtime::ToScalarType(s.dtype))}}, s);
    case ViewOp::kViewAsReal:
      return EmitNamed(state, "aten::view_as_complex", {x}, {}, s);
    case ViewOp::kViewAsComplex:
      return EmitNamed(state, "aten::view_as_real", {x}, {}, s);
    case ViewOp::kConj:
      return EmitNamed(state, "aten::conj_physical", {x}, {}, s);
    case ViewOp::kNeg:
      return EmitNamed(state, "aten::neg", {x}, {}, s);
    case ViewOp::kSlice:
      return EmitNamed(state, "aten::slice_scatter", {into, x},
                       {{"dim", i[0]}, {"start", i[1]}, {"end", i[2]}, {"step", i[3]}}, s);
    case ViewOp::kSelect:
      return EmitNamed(state, "aten::select_scatter", {into, x}, {{"dim", i[0]}, {"index", i[1]}},
                       s);
    case ViewOp::kDiagonal:
      return EmitNamed(state, "aten::diagonal_scatter", {into, x},
                       {{"offset", i[0]}, {"dim1", i[1]}, {"dim2", i[2]}}, s);
    case ViewOp::kUnfold:
    case ViewOp::kExpand:
      break;  // cannot occur: see PassesRepeats
    case ViewOp::kStrided:
      return EmitNamed(state, "aten::put", {into, StridedIndex(state, step), x},
                       {{"accumulate", false}}, s);
  }
  return kNoId;
}

bool PassesRepeats(const RecipePtr& recipe) {
  for (const Recipe* r = recipe.get(); r != nullptr; r = r->parent.get()) {
    if (r->op == ViewOp::kExpand || r->op == ViewOp::kUnfold) return true;
  }
  return false;
}

// `notes` are the Buffer's, with the marks of its parts.
TapeId ReadThrough(Session::State& state, TapeId base, const RecipePtr& recipe,
                   const MarkNotes* notes) {
  if (recipe == nullptr) return base;
  if (const auto known = state.tape->FindView(base, recipe.get())) return *known;
  const TapeId parent = ReadThrough(state, base, recipe->parent, notes);
  const TapeId view = StepForward(state, *recipe, parent);
  state.tape->RememberView(base, recipe, view);
  if (const MarkPtr mark = PartMark(notes, *recipe)) state.tape->Annotate(view, mark);
  return view;
}

// The Buffer's value; it is created if the memory was never written.
TapeId UseBase(Session::State& state, Buffer* buffer) {
  if (buffer->holds_nothing()) {
    const TensorType type{runtime::FromScalarType(buffer->form.dtype),
                          Dims(buffer->form.sizes.begin(), buffer->form.sizes.end())};
    BindBuffer(state, buffer, EmitFull(state, type, 0));
  }
  ThrowIfError(buffer->value()->poison);
  return state.tape->Use(buffer->value(), buffer);
}

}  // namespace

TensorType TypeOf(const TensorMeta& meta) {
  if (!meta.defined) return {DType::kF32, {0}};
  return {runtime::FromScalarType(meta.dtype), meta.sizes};
}
TensorType TypeOf(const at::Tensor& t) {
  return {runtime::FromScalarType(t.scalar_type()), Dims(t.sizes().begin(), t.sizes().end())};
}
TensorType TypeOf(Session::State& state, TapeId id) { return state.tape->type(id); }

Buffer* BufferOf(const at::Tensor& tensor) {
  Buffer* buffer = tensor.has_storage() ? Buffer::Of(tensor.storage()) : nullptr;
  TORCH_CHECK(buffer != nullptr,
              "Expected all tensors to be on the same device, but found at least "
              "two devices, ",
              TheDevice(), " and ", tensor.device(), "!");
  return buffer;
}

namespace {

// Gives a new tensor its form. It begins at `offset`, whatever `meta` says.
void TakeForm(const at::Tensor& tensor, const TensorMeta& meta, int64_t offset) {
  if (meta.form.has_value() && meta.form->offset == offset) {
    return DeviceTensorImpl::Of(tensor).TakeForm(*meta.form);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      at::IntArrayRef(meta.sizes.data(), meta.sizes.size()),
      at::IntArrayRef(meta.strides.data(), meta.strides.size()), offset);
}

}  // namespace

Fresh NewMemory(const TensorMeta& meta) {
  const auto type_meta = c10::scalarTypeToTypeMeta(meta.dtype);
  int64_t elements = 1;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    elements = meta.sizes[d] == 0 ? 0 : elements;
    if (elements == 0) break;
    elements += (meta.sizes[d] - 1) * meta.strides[d];
  }
  c10::Storage storage =
      Buffer::NewStorage(elements * static_cast<int64_t>(type_meta.itemsize()),
                         {.dtype = meta.dtype, .sizes = meta.sizes, .strides = meta.strides});
  auto* const buffer = static_cast<Buffer*>(storage.data_ptr().get_context());
  at::Tensor tensor = at::detail::make_tensor_base<DeviceTensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type_meta);
  TakeForm(tensor, meta, /*offset=*/0);
  return {std::move(tensor), buffer};
}

at::Tensor NewTensor(const TensorMeta& meta, ValuePtr value) {
  if (!meta.defined) return at::Tensor();
  Fresh fresh = NewMemory(meta);
  fresh.buffer->Hold(std::move(value));
  return std::move(fresh.tensor);
}

at::Tensor NewTensor(Session::State& state, const TensorMeta& meta, TapeId value) {
  TensorMeta dense = meta;
  if (meta.defined) {
    // Results have their own storage: a Meta kernel that returns an expanded or sliced tensor
    // describes a storage that does not exist here.
    const at::IntArrayRef sizes(meta.sizes.data(), meta.sizes.size());
    dense.offset = 0;
    int64_t span = 1, elements = 1;
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      span += (meta.sizes[d] - 1) * meta.strides[d];
      elements *= meta.sizes[d];
    }
    if (elements != 0 && span != elements) dense = TensorMeta::Contiguous(meta.dtype, sizes);
  }
  at::Tensor tensor = NewTensor(dense, nullptr);
  if (tensor.defined()) BindBuffer(state, BufferOf(tensor), value);
  return tensor;
}

at::Tensor NewView(const at::Tensor& base, const TensorMeta& meta) {
  at::Tensor tensor = at::detail::make_tensor_base<DeviceTensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
      c10::scalarTypeToTypeMeta(meta.dtype));
  TakeForm(tensor, meta, meta.offset);
  return tensor;
}

ValuePtr HostValue(const at::Tensor& host, bool steal) {
  auto value = c10::make_intrusive<Value>(TypeOf(host));
  const runtime::TileMemory::Scope kept;
  const at::Tensor plain = host.resolve_conj().resolve_neg();
  value->host = steal || !plain.is_same(host) ? plain.contiguous()
                                              : plain.clone(at::MemoryFormat::Contiguous);
  return value;
}

RecipePtr RecipeOf(Buffer* buffer, const at::Tensor& tensor) {
  if (IsBase(buffer->form, tensor)) return nullptr;
  RecipePtr& slot = buffer->recipes.Slot(tensor);
  if (slot == nullptr) slot = StridedRecipe(buffer->form, tensor);
  return slot;
}

TapeId Read(Session::State& state, const at::Tensor& tensor) {
  Buffer* buffer = BufferOf(tensor);
  const TapeId base = UseBase(state, buffer);
  return ReadThrough(state, base, RecipeOf(buffer, tensor), NotesOf(*buffer));
}

void BindBuffer(Session::State& state, Buffer* buffer, TapeId value) {
  Tape& tape = *state.tape;
  if (tape.IsHeldBy(*buffer, value)) return;
  if (buffer->mark != nullptr && !MarkWaits(*buffer)) {
    // The mark binds the value. A value that something else holds, too, is copied first.
    if (tape.origin(value).record < 0 || tape.CountHolders(value) > 0) {
      value = EmitClone(state, value);
    }
    tape.Annotate(value, buffer->mark);
  }
  tape.Bind(*buffer, value);
}

void Write(Session::State& state, const at::Tensor& tensor, TapeId value, Overlap overlap) {
  Buffer* buffer = BufferOf(tensor);
  if (overlap == Overlap::kRefused) at::assert_no_internal_overlap(tensor);
  RecipePtr recipe = RecipeOf(buffer, tensor);
  // Elements that occur at several places of an intermediate view have no inverse there, so their
  // places in memory are used.
  if (PassesRepeats(recipe)) recipe = StridedRecipe(buffer->form, tensor);
  if (recipe == nullptr) {
    BindBuffer(state, buffer, value);
    return;
  }
  const std::vector<const Recipe*> chain = Chain(recipe);
  bool needs_base = false;
  for (const Recipe* step : chain) needs_base |= !IsBijection(step->op);
  const TapeId base = needs_base ? UseBase(state, buffer) : kNoId;
  TapeId x = value;
  for (size_t k = chain.size(); k-- > 0;) {
    const TapeId into = IsBijection(chain[k]->op)
                            ? kNoId
                            : ReadThrough(state, base, chain[k]->parent, NotesOf(*buffer));
    x = StepBackward(state, *chain[k], into, x);
  }
  BindBuffer(state, buffer, x);
}

void RebaseBytes(Session::State& state, Buffer* buffer, BaseForm form) {
  if (!buffer->holds_nothing()) {
    // A tensor of the new form over the old value, as a strided view of it.
    c10::Storage storage = Buffer::NewStorage(0, {});
    at::Tensor shape = at::detail::make_tensor_base<DeviceTensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        c10::scalarTypeToTypeMeta(form.dtype));
    shape.unsafeGetTensorImpl()->set_sizes_and_strides(
        at::IntArrayRef(form.sizes.data(), form.sizes.size()),
        at::IntArrayRef(form.strides.data(), form.strides.size()));
    const RecipePtr recipe = StridedRecipe(buffer->form, shape);
    if (recipe != nullptr) {
      ThrowIfError(buffer->value()->poison);
      if (buffer->value()->host.defined()) {
        at::Tensor host = buffer->value()->host;
        for (const Recipe* step : Chain(recipe)) host = ApplyOnHost(*step, host);
        buffer->Bind(HostValue(host, /*steal=*/true));
      } else {
        const TapeId base = state.tape->Use(buffer->value(), buffer);
        const TapeId value = ReadThrough(state, base, recipe, nullptr);
        buffer->Rebase(std::move(form));  // first, since the marks of the old form end here
        BindBuffer(state, buffer, value);
        return;
      }
    }
  }
  buffer->Rebase(std::move(form));
}

at::Tensor ReadHost(Session::State& state, const at::Tensor& tensor, const char* why) {
  state.looked_at_values = true;
  Buffer* buffer = BufferOf(tensor);
  if (buffer->holds_nothing()) {
    return at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
  }
  if (buffer->pending()) ThrowIfError(Cut(state, why));
  // The value is held here, since a signal's handler may write the tensor during the wait.
  const ValuePtr value = buffer->value();
  ThrowIfError(Resolve(state, *value));
  at::Tensor host =
      value->host.defined() ? value->host : ValueOrThrow(runtime::Download(*value->tiles));
  for (const Recipe* step : Chain(RecipeOf(buffer, tensor))) host = ApplyOnHost(*step, host);
  return host.clone(at::MemoryFormat::Contiguous);
}

TapeId Emit(Session::State& state, const OpInfo& op, std::vector<c10::IValue> args,
            absl::InlinedVector<TapeId, 4> operands, absl::Span<const TensorType> results,
            absl::InlinedVector<ir::OperandGroup, 1> groups, bool updates_first) {
  Record record;
  record.op = &op;
  record.args = std::move(args);
  record.operands = std::move(operands);
  record.groups = std::move(groups);
  record.updates_first = updates_first;
  return AppendRecord(state, std::move(record), results);
}

TapeId EmitNamed(Session::State& state, const char* name, absl::InlinedVector<TapeId, 4> operands,
                 std::vector<NamedArg> named, const TensorType& result) {
  const OpInfo& op = GetOp(name);
  const auto& schema = op.handle.schema().arguments();
  std::vector<c10::IValue> args(op.args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == ArgKind::kTensor || op.args[i].kind == ArgKind::kTensorList) continue;
    if (schema[i].default_value().has_value()) args[i] = *schema[i].default_value();
    for (NamedArg& arg : named) {
      if (op.args[i].name == arg.name) args[i] = std::move(arg.value);
    }
  }
  return Emit(state, op, std::move(args), std::move(operands), {result});
}

TapeId EmitCast(Session::State& state, TapeId x, DType dtype) {
  const TensorType type = TypeOf(state, x);
  if (type.dtype == dtype) return x;
  return EmitNamed(state, "spmd::cast", {x},
                   {{"dtype", static_cast<int64_t>(runtime::ToScalarType(dtype))}},
                   {dtype, type.dims});
}

TapeId EmitFull(Session::State& state, const TensorType& type, const c10::Scalar& value) {
  return EmitNamed(state, "spmd::full", {},
                   {{"size", Ints(Vec(type.dims))},
                    {"value", c10::IValue(value)},
                    {"dtype", static_cast<int64_t>(runtime::ToScalarType(type.dtype))}},
                   type);
}

TapeId EmitClone(Session::State& state, TapeId x) {
  return EmitNamed(state, "aten::clone", {x}, {}, TypeOf(state, x));
}

TapeId EmitView(Session::State& state, TapeId x, const Dims& dims) {
  return EmitNamed(state, "aten::view", {x}, {{"size", Ints(Vec(dims))}},
                   {TypeOf(state, x).dtype, dims});
}

TapeId EmitExpand(Session::State& state, TapeId x, const Dims& dims) {
  const TensorType type = TypeOf(state, x);
  if (type.dims == dims) return x;
  return EmitNamed(state, "aten::expand", {x}, {{"size", Ints(Vec(dims))}}, {type.dtype, dims});
}

}  // namespace spmd::trace
