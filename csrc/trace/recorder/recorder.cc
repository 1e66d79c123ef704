// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/recorder.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/arange.h>

#include <optional>
#include <utility>

#include "csrc/rules/tables/batch_index.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/program/compiled_program.h"
#include "csrc/trace/recorder/graph_task.h"
#include "csrc/trace/recorder/marks.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/trace/tape/filled_leaf.h"

namespace spmd::trace {

namespace {

c10::IValue Ints(std::vector<int64_t> v) { return c10::IValue(std::move(v)); }
std::vector<int64_t> Vec(const Dims& d) { return {d.begin(), d.end()}; }

// The numbers of the elements that a strided view shows, as an input of the tape.
TapeId StridedIndex(SessionState& state, const Recipe& step) {
  const int64_t n = step.source.dims[0];
  const at::Tensor index =
      at::arange(n, at::kLong)
          .as_strided(Vec(step.result.dims), at::IntArrayRef(step.ints).slice(1), step.ints[0])
          .contiguous();
  return state.tape->Use(HostValue(index, /*steal=*/true), nullptr);
}

TapeId StepForward(SessionState& state, const Recipe& step, TapeId x) {
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
TapeId StepBackward(SessionState& state, const Recipe& step, TapeId into, TapeId x) {
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
TapeId ReadThrough(SessionState& state, TapeId base, const RecipePtr& recipe,
                   const MarkNotes* notes) {
  if (recipe == nullptr) return base;
  if (const auto known = state.tape->FindView(base, recipe.get())) return *known;
  const TapeId parent = ReadThrough(state, base, recipe->parent, notes);
  const TapeId view = StepForward(state, *recipe, parent);
  state.tape->RememberView(base, recipe, view);
  if (const MarkPtr mark = PartMark(notes, *recipe)) state.tape->Annotate(view, mark);
  return view;
}

// The dimension along which the value is 0, 1, 2, …, if an earlier program made it so. The compiler
// recognizes such an index where a program makes it (csrc/rules/tables/batch_index.h), and making
// it again costs less than passing it on:
//
//   rows = torch.arange(B); y = x[rows, last]; print(y.sum()); y.sum().backward()
std::optional<int> NumberedDim(const Value& value) {
  if (value.origin_output < 0 || value.type.rank() == 0) return std::nullopt;
  if (value.type.dtype != DType::kI64 && value.type.dtype != DType::kI32) return std::nullopt;
  const std::shared_ptr<CompiledProgram> program = value.origin.lock();
  if (program == nullptr) return std::nullopt;
  const ir::Graph& graph = program->traced;
  const ir::ValueId made = graph.outputs()[value.origin_output].value;
  if (!(graph.type(made) == value.type)) return std::nullopt;
  const auto numbering = rules::NumberingOf(graph, made);
  if (!numbering || numbering->count != value.type.dims[numbering->dim]) return std::nullopt;
  return numbering->dim;
}

TapeId EmitNumbers(SessionState& state, const TensorType& type, int dim) {
  const int64_t count = type.dims[dim];
  const TapeId numbers =
      EmitNamed(state, "spmd::iota", {},
                {{"size", count},
                 {"start", int64_t{0}},
                 {"step", int64_t{1}},
                 {"offset", int64_t{0}},
                 {"dtype", static_cast<int64_t>(runtime::ToScalarType(type.dtype))}},
                {type.dtype, {count}});
  if (type.rank() == 1) return numbers;
  Dims along(type.rank(), 1);
  along[dim] = count;
  return EmitExpand(state, EmitView(state, numbers, along), type.dims);
}

// The Buffer's value; it is created if the memory was never written.
TapeId UseBase(SessionState& state, Buffer* buffer) {
  if (buffer->holds_nothing()) {
    const TensorType type{runtime::FromScalarType(buffer->form.dtype),
                          Dims(buffer->form.sizes.begin(), buffer->form.sizes.end())};
    BindBuffer(state, buffer, EmitFull(state, type, 0));
  }
  const ValuePtr value = buffer->value();
  ThrowIfError(value->poison);
  return UseValue(state, value, buffer);
}

}  // namespace

TapeId UseValue(SessionState& state, const ValuePtr& value, const Buffer* from) {
  if (state.tape->NumberOf(*value) == kNoId && (from == nullptr || from->mark == nullptr)) {
    if (const auto dim = value->manual == 0 ? NumberedDim(*value) : std::nullopt) {
      state.call.looked_at_values = true;  // any other value is an input
      return EmitNumbers(state, value->type, *dim);
    }
  }
  return state.tape->Use(value, from);
}

TensorType TypeOf(SessionState& state, TapeId id) { return state.tape->type(id); }

TapeId Read(SessionState& state, const at::Tensor& tensor) {
  Buffer* buffer = BufferOf(tensor);
  const TapeId base = UseBase(state, buffer);
  return ReadThrough(state, base, RecipeOf(buffer, tensor), NotesOf(*buffer));
}

void BindBuffer(SessionState& state, Buffer* buffer, TapeId value) {
  Tape& tape = *state.tape;
  if (tape.IsHeldBy(*buffer, value)) return;
  if (buffer->mark != nullptr && !MarkWaits(*buffer)) {
    // The mark binds the value. A value that something else holds, too, is copied first.
    if (tape.origin(value).record < 0 || tape.CountHolders(value) > 0) {
      value = EmitClone(state, value);
    }
    tape.Annotate(value, buffer->mark);
  }
  NoteGradient(*buffer);
  tape.Bind(*buffer, value);
}

void Write(SessionState& state, const at::Tensor& tensor, TapeId value, Overlap overlap) {
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

void RebaseBytes(SessionState& state, Buffer* buffer, BaseForm form) {
  if (!buffer->holds_nothing()) {
    // A tensor of the new form over the old value, as a strided view of it.
    c10::Storage storage = Buffer::NewStorage(0, {});
    at::Tensor shape = compat::NewTensor<c10::TensorImpl>(
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

namespace {

// Follows the recording that begins like the tape, if there is one. True if it now follows one.
bool FollowKnown(SessionState& state) {
  Tape& tape = *state.tape;
  RecordingPtr recording = state.prefixes.Find(tape.key(), tape.recording());
  if (recording == nullptr) return false;
  tape.Follow(std::move(recording), tape.event());
  return true;
}

}  // namespace

TapeId Emit(SessionState& state, const OpInfo& op, std::vector<c10::IValue> args,
            absl::InlinedVector<TapeId, 4> operands, absl::Span<const TensorType> results,
            absl::InlinedVector<ir::OperandGroup, 1> groups, bool updates_first) {
  Record record;
  record.op = &op;
  record.args = std::move(args);
  record.operands = std::move(operands);
  record.groups = std::move(groups);
  record.updates_first = updates_first;
  Tape& tape = *state.tape;
  const int64_t graph_task = GraphTask();
  state.micro_steps.Note(graph_task, updates_first);
  record.task = tape.TaskNumber(graph_task);
  const TapeId first = tape.Append(std::move(record), results);
  ++state.diagnostics.statistics.records;
  if (tape.following() || FollowKnown(state)) return first;
  if (state.hooks.current_line != nullptr) {
    tape.SetLine(state.lines.Current(state.hooks.current_line));
  }
  return first;
}

TapeId EmitNamed(SessionState& state, const char* name, absl::InlinedVector<TapeId, 4> operands,
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

TapeId EmitCast(SessionState& state, TapeId x, DType dtype) {
  const TensorType type = TypeOf(state, x);
  if (type.dtype == dtype) return x;
  return EmitNamed(state, "spmd::cast", {x},
                   {{"dtype", static_cast<int64_t>(runtime::ToScalarType(dtype))}},
                   {dtype, type.dims});
}

TapeId EmitFull(SessionState& state, const TensorType& type, const c10::Scalar& value) {
  return EmitNamed(state, "spmd::full", {},
                   {{"size", Ints(Vec(type.dims))},
                    {"value", c10::IValue(value)},
                    {"dtype", static_cast<int64_t>(runtime::ToScalarType(type.dtype))}},
                   type);
}

TapeId EmitClone(SessionState& state, TapeId x) {
  return EmitNamed(state, "aten::alias", {x}, {}, TypeOf(state, x));
}

TapeId EmitView(SessionState& state, TapeId x, const Dims& dims) {
  return EmitNamed(state, "aten::view", {x}, {{"size", Ints(Vec(dims))}},
                   {TypeOf(state, x).dtype, dims});
}

TapeId EmitPermute(SessionState& state, TapeId x, absl::Span<const int64_t> order) {
  const TensorType type = TypeOf(state, x);
  Dims dims;
  for (const int64_t d : order) dims.push_back(type.dims[d]);
  return EmitNamed(state, "aten::permute", {x}, {{"dims", Ints({order.begin(), order.end()})}},
                   {type.dtype, dims});
}

TapeId EmitBorder(SessionState& state, bool enters, TapeId x, const Dims& size,
                  const std::string& border, const std::string& mesh) {
  return EmitNamed(
      state, enters ? "spmd::to_local" : "spmd::to_global", {x},
      {{"size", Ints(Vec(size))}, {enters ? "enter" : "leave", border}, {"mesh", mesh}},
      {TypeOf(state, x).dtype, size});
}

TapeId EmitExpand(SessionState& state, TapeId x, const Dims& dims) {
  const TensorType type = TypeOf(state, x);
  if (type.dims == dims) return x;
  return EmitNamed(state, "aten::expand", {x}, {{"size", Ints(Vec(dims))}}, {type.dtype, dims});
}

}  // namespace spmd::trace
