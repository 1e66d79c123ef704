// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/marks.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "csrc/trace/device/device_type.h"
#include "csrc/trace/program/lower.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// True if the marks of some Buffers may wait. It is not reset when such Buffers end.
std::atomic<bool> any_waits{false};

// BaseDims for some steps of a recipe.
std::optional<std::vector<int>> DimsThrough(absl::Span<const Recipe* const> steps,
                                            const Dims& base) {
  std::vector<int> dims(base.size());
  for (size_t d = 0; d < base.size(); ++d) dims[d] = static_cast<int>(d);
  Dims current = base;
  for (const Recipe* step : steps) {
    std::vector<int> next;
    if (step->op == ViewOp::kPermute) {
      for (const int64_t d : step->ints) next.push_back(dims[d]);
    } else if (step->op == ViewOp::kReshape || step->op == ViewOp::kExpand ||
               step->op == ViewOp::kSlice) {
      // The dimensions are the same, apart from those of size 1.
      size_t d = 0;
      for (const int64_t n : step->result.dims) {
        while (d < current.size() && current[d] == 1 && n != 1) ++d;
        if (n == 1 && (d >= current.size() || current[d] != 1)) {
          next.push_back(-1);
        } else if (d < current.size() && current[d] == n) {
          next.push_back(dims[d++]);
        } else {
          return std::nullopt;
        }
      }
      while (d < current.size() && current[d] == 1) ++d;
      if (d != current.size()) return std::nullopt;
    } else if (step->op != ViewOp::kConj && step->op != ViewOp::kNeg) {
      return std::nullopt;
    }
    if (!next.empty() || step->result.dims.empty()) dims = std::move(next);
    current = step->result.dims;
  }
  return dims;
}

PartitionSpec ViewSpec(const PartitionSpec& spec, const std::vector<int>& dims) {
  PartitionSpec out(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] >= 0) out[d] = spec[dims[d]];
  }
  return out;
}

const MarkNotes::Part* FindPart(const MarkNotes* notes, const Recipe& step) {
  if (notes == nullptr) return nullptr;
  for (const MarkNotes::Part& part : notes->parts) {
    // This pointer owns nothing and is only compared.
    if (SameRecipe(part.view, RecipePtr(RecipePtr(), &step))) return &part;
  }
  return nullptr;
}

// MergedSpec for some steps of a recipe.
std::optional<PartitionSpec> MergedSpecThrough(absl::Span<const Recipe* const> steps,
                                               PartitionSpec spec, Dims dims) {
  for (size_t k = 0; k < steps.size(); ++k) {
    const Recipe& step = *steps[k];
    PartitionSpec next;
    if (step.op == ViewOp::kPermute) {
      for (const int64_t d : step.ints) next.push_back(spec[d]);
    } else if (step.op == ViewOp::kReshape) {
      // A merge that the next step splits again is skipped.
      if (k + 1 < steps.size() && steps[k + 1]->op == ViewOp::kReshape) continue;
      size_t d = 0;
      const auto skip_ones = [&] {
        while (d < dims.size() && dims[d] == 1) ++d;
      };
      for (const int64_t n : step.result.dims) {
        SpecEntry entry;
        for (int64_t merged = 1; merged != n; ++d) {
          skip_ones();
          if (d == dims.size() || dims[d] == 0 || !entry.axes.empty()) return std::nullopt;
          entry = spec[d];
          if (!entry.axes.empty()) entry.blocks *= merged;
          if (entry.unconstrained && merged > 1) return std::nullopt;
          merged *= dims[d];
          if (n % merged != 0) return std::nullopt;
        }
        next.push_back(std::move(entry));
      }
      skip_ones();
      if (d != dims.size()) return std::nullopt;
    } else {
      return std::nullopt;
    }
    spec = std::move(next);
    dims = step.result.dims;
  }
  return spec;
}

MarkPtr MarkThrough(const Buffer& buffer, const RecipePtr& recipe) {
  const MarkNotes* const notes = NotesOf(buffer);
  if (buffer.mark == nullptr && notes == nullptr) return nullptr;
  const std::vector<const Recipe*> chain = Chain(recipe);
  MarkPtr mark = buffer.mark;
  Dims dims = buffer.form.sizes;
  size_t begin = 0;
  for (size_t k = chain.size(); k-- > 0;) {
    const MarkNotes::Part* const part = FindPart(notes, *chain[k]);
    if (part == nullptr) continue;
    mark = part->mark;
    dims = chain[k]->result.dims;
    begin = k + 1;
    break;
  }
  if (mark == nullptr || begin == chain.size()) return mark;
  const auto steps = absl::MakeConstSpan(chain).subspan(begin);
  if (const auto through = DimsThrough(steps, dims)) {
    return std::make_shared<const Mark>(
        Mark{mark->mesh, ViewSpec(mark->spec, *through), false, mark->name});
  }
  const std::optional<PartitionSpec> merged = MergedSpecThrough(steps, mark->spec, dims);
  if (!merged.has_value()) return nullptr;
  return std::make_shared<const Mark>(Mark{mark->mesh, *merged, false, mark->name});
}

void SetWaits(MarkNotes& notes, bool waits) {
  notes.waits = waits;
  if (waits) any_waits = true;
}

// --- host tensors ---

struct HostMark {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being used again
  Dims sizes;
  MarkPtr mark;
};
using HostMarks = absl::flat_hash_map<const c10::StorageImpl*, HostMark>;
HostMarks& TheHostMarks() {
  static auto* const marks = new HostMarks;
  return *marks;
}

void NoteHostMark(const at::Tensor& host, const MarkPtr& mark) {
  static size_t most = 64;  // at this many, those whose storage is gone are dropped
  if (!host.has_storage()) return;
  HostMarks& marks = TheHostMarks();
  if (marks.size() >= most) {
    absl::erase_if(marks, [](const auto& known) { return known.second.storage.expired(); });
    most = std::max<size_t>(64, 2 * marks.size());
  }
  c10::StorageImpl* const storage = host.storage().unsafeGetStorageImpl();
  marks.insert_or_assign(storage,
                         HostMark{c10::weak_intrusive_ptr<c10::StorageImpl>(
                                      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)),
                                  Dims(host.sizes().begin(), host.sizes().end()), mark});
}

MarkPtr HostMarkOf(const at::Tensor& host) {
  const HostMarks& marks = TheHostMarks();
  if (marks.empty() || !host.has_storage() || host.storage_offset() != 0) return nullptr;
  const auto it = marks.find(host.storage().unsafeGetStorageImpl());
  if (it == marks.end() || it->second.storage.expired()) return nullptr;
  if (at::IntArrayRef(it->second.sizes.data(), it->second.sizes.size()) != host.sizes()) {
    return nullptr;
  }
  return it->second.mark;
}

}  // namespace

MarkPtr PartMark(const MarkNotes* notes, const Recipe& step) {
  const MarkNotes::Part* const part = FindPart(notes, step);
  return part == nullptr ? nullptr : part->mark;
}

bool MarkWaits(const Buffer& buffer) {
  const MarkNotes* const notes = NotesOf(buffer);
  return notes != nullptr && notes->waits;
}

void BindWaitingMarks(SessionState& state) {
  if (!any_waits) return;
  if (!SeveralThreads()) any_waits = false;  // else Buffers on another thread's tape may wait
  // Values come first, then Buffers. A Buffer may end at any time except while it is visited, and
  // nothing may be recorded during the visit.
  struct Bound {
    const Buffer* buffer;
    TapeId value;
    TapeId own;  // a value that nothing else holds
  };
  Tape& tape = *state.tape;
  std::vector<Bound> bound;
  const auto waiting = [&](Buffer& buffer) {
    return buffer.mark != nullptr && buffer.pending() && MarkWaits(buffer) &&
           buffer.value()->tape == tape.number();
  };
  tape.bindings().ForEach([&](Buffer& buffer, TapeId) {
    if (waiting(buffer)) bound.push_back({&buffer, buffer.value()->id, kNoId});
  });
  for (Bound& b : bound) {
    b.own = b.value;
    if (tape.origin(b.value).record < 0 || tape.CountHolders(b.value) > 1) {
      b.own = EmitClone(state, b.value);
    }
  }
  tape.bindings().ForEach([&](Buffer& buffer, TapeId) {
    const auto it = std::find_if(bound.begin(), bound.end(),
                                 [&](const Bound& b) { return b.buffer == &buffer; });
    if (it == bound.end() || !waiting(buffer) || buffer.value()->id != it->value) return;
    NotesOf(buffer)->waits = false;
    tape.Annotate(it->own, buffer.mark);
    if (it->own != it->value) tape.Bind(buffer, it->own);
  });
}

std::optional<std::vector<int>> BaseDims(const RecipePtr& recipe, const Dims& base) {
  return DimsThrough(Chain(recipe), base);
}

std::optional<PartitionSpec> MergedSpec(PartitionSpec spec, const RecipePtr& recipe,
                                        const Dims& base) {
  return MergedSpecThrough(Chain(recipe), std::move(spec), base);
}

std::optional<PartitionSpec> SpecOfBase(const PartitionSpec& spec, const RecipePtr& recipe,
                                        const Dims& base) {
  if (recipe == nullptr) return spec;
  const auto dims = BaseDims(recipe, base);
  if (!dims.has_value()) return std::nullopt;
  PartitionSpec out(base.size());
  for (size_t d = 0; d < dims->size(); ++d) {
    if ((*dims)[d] >= 0) {
      out[(*dims)[d]] = spec[d];
    } else if (!spec[d].axes.empty()) {
      return std::nullopt;
    }
  }
  return out;
}

MarkPtr MarkOf(const at::Tensor& tensor) {
  Buffer* const buffer = BufferOf(tensor);
  if (buffer->mark == nullptr && NotesOf(*buffer) == nullptr) return nullptr;
  return MarkThrough(*buffer, RecipeOf(buffer, tensor));
}

bool IsWhole(const at::Tensor& tensor) {
  return IsDense(tensor) &&
         static_cast<size_t>(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes();
}

absl::StatusOr<MarkedBlocks> FormInBlocks(SessionState& state, const char* caller,
                                          const at::Tensor& tensor, const Mark& mark) {
  const TensorMeta meta = TensorMeta::Of(tensor);
  SPMD_ASSIGN_OR_RETURN(BlocksApart apart,
                        TakeBlocksApart(caller, mark.spec, meta.sizes, meta.strides));
  const TensorMeta in_blocks{.dtype = meta.dtype,
                             .sizes = std::move(apart.dims),
                             .strides = std::move(apart.strides),
                             .offset = meta.offset};
  MarkedBlocks marked{
      NewView(tensor, in_blocks),
      std::make_shared<const Mark>(Mark{mark.mesh, std::move(apart.spec), false, mark.name})};
  Buffer* const buffer = BufferOf(tensor);
  if (SpecOfBase(marked.mark->spec, RecipeOf(buffer, marked.view), buffer->form.sizes)) {
    return marked;
  }
  if (!IsWhole(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(
        caller, ": spec ", SpecToString(mark.spec), " is of a view of part of a tensor of sizes ",
        DimsToString(buffer->form.sizes),
        "; blocks(n, axes) marks a whole tensor, or a copy: ", "tensor.clone()"));
  }
  if (buffer->mark == nullptr) RebaseBytes(state, buffer, FormOf(marked.view));
  return marked;
}

bool LiesOtherwise(const Value& value, const Mark& mark) {
  if (value.pending || value.layout == nullptr) return false;
  const Layout& layout = *value.layout;
  if (!layout.grid()->Refines(mark.mesh)) return true;
  auto wanted = ResolveSpec("", mark.spec, mark.mesh, *layout.grid(), layout.rank());
  if (!wanted.ok()) return true;
  for (int d = 0; d < layout.rank(); ++d) {
    const DimSharding& lies = layout.sharding().dims[d];
    DimSharding& dim = wanted->dims[d];
    // An open dimension may be sharded over more axes.
    if (dim.open && lies.axes.size() >= dim.axes.size() &&
        std::equal(dim.axes.begin(), dim.axes.end(), lies.axes.begin())) {
      dim = lies;
    }
  }
  return !CheckLayout(*layout.grid(), *wanted, layout.dims()).ok() ||
         Layout(layout.grid(), wanted->Closed(), layout.dims()) != layout;
}

void SayLost(SessionState& state, const char* caller, const Mark& mark,
             const std::string& because) {
  if (state.hooks.warn == nullptr) return;
  const std::string line = state.hooks.current_line != nullptr ? state.hooks.current_line() : "";
  if (!state.diagnostics.FirstTime(absl::StrCat("mark lost ", caller, " ", line))) return;
  state.hooks.warn(absl::StrCat(caller, ": the mark ", SpecToString(mark.spec), " on mesh ",
                                mark.mesh.AxesToString(), " is not kept, ", because,
                                "; mark the new tensor: spmd.mark_sharding(tensor, mesh, spec)"));
}

void GiveMark(SessionState& state, const at::Tensor& tensor, const MarkPtr& mark,
              const char* caller) {
  if (!Buffer::IsOurs(tensor)) return NoteHostMark(tensor, mark);
  Buffer* const buffer = BufferOf(tensor);
  const RecipePtr recipe = RecipeOf(buffer, tensor);
  if (MarkThrough(*buffer, recipe) != nullptr) return;
  if (HasBlocks(mark->spec)) {
    const absl::StatusOr<MarkedBlocks> marked = FormInBlocks(state, caller, tensor, *mark);
    if (!marked.ok()) return SayLost(state, caller, *mark, "since it is of a part of a tensor");
    return GiveMark(state, marked->view, marked->mark, caller);
  }
  if (const absl::Status known = NoteMesh(state, mark->mesh); !known.ok()) {
    return SayLost(state, caller, *mark, absl::StrCat("since ", known.message()));
  }
  const auto spec = SpecOfBase(mark->spec, recipe, buffer->form.sizes);
  if (buffer->mark != nullptr || !spec.has_value()) {
    MakeNotes(*buffer).parts.push_back({recipe, mark, /*copied=*/true});
    return;
  }
  const auto of_base = std::make_shared<const Mark>(
      Mark{mark->mesh, *spec, mark->of_parameter || IsParameter(tensor), mark->name});
  MarkNotes& notes = MakeNotes(*buffer);
  notes.copied = true;
  if (!buffer->holds_nothing() && LiesOtherwise(*buffer->value(), *of_base)) {
    const TapeId id = state.tape->Use(buffer->value(), buffer);
    BindBuffer(state, buffer, EmitClone(state, id));
  }
  buffer->mark = of_base;
  buffer->settled.reset();
  SetWaits(notes, buffer->pending());
}

void KeepMark(SessionState& state, const at::Tensor& from, const at::Tensor& to,
              const char* caller) {
  if (!from.defined() || !to.defined() || from.is_same(to)) return;
  const bool ours = Buffer::IsOurs(from);
  const MarkPtr mark = ours ? MarkOf(from) : HostMarkOf(from);
  if (mark == nullptr) return;
  if (from.has_storage() && to.has_storage() && from.storage().is_alias_of(to.storage())) return;
  if (mark->spec.size() != static_cast<size_t>(to.dim())) {
    return SayLost(state, caller, *mark,
                   absl::StrCat("since its replacement has ", to.dim(),
                                to.dim() == 1 ? " dimension" : " dimensions"));
  }
  GiveMark(state, to, mark, caller);
}

bool KeepsMarks(const OpInfo& op) {
  return op.copies_tensor && !(op.casts && at::autocast::is_autocast_enabled(kDeviceType));
}

}  // namespace spmd::trace
