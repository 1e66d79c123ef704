// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/value/view_recipe.h"

#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <numeric>

#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/shape/shape_inference.h"

namespace spmd::trace {

namespace {

TensorType TypeOf(at::ScalarType dtype, at::IntArrayRef sizes) {
  return {runtime::FromScalarType(dtype), Dims(sizes.begin(), sizes.end())};
}

// The dimensions by descending stride, which is the order of elements in storage. Dimensions of
// size 1 keep their places.
std::vector<int64_t> StorageOrder(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<int64_t> real;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1) real.push_back(static_cast<int64_t>(d));
  }
  std::stable_sort(real.begin(), real.end(),
                   [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> order(sizes.size());
  size_t next = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    order[d] = sizes[d] == 1 ? static_cast<int64_t>(d) : real[next++];
  }
  return order;
}

bool Dense(at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::vector<int64_t> order = StorageOrder(sizes, strides);
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const int64_t d = order[i];
    if (sizes[d] == 0) return true;
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

bool IsIdentity(const std::vector<int64_t>& order) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

RecipePtr Step(RecipePtr parent, ViewOp op, std::vector<int64_t> ints, TensorType source,
               TensorType result) {
  return std::make_shared<const Recipe>(
      Recipe{std::move(parent), op, std::move(ints), std::move(source), std::move(result)});
}

// Appends the permutation `order` and a reshape to `dims`, and omits what changes nothing.
RecipePtr PermuteTo(RecipePtr parent, const TensorType& source, const std::vector<int64_t>& order) {
  if (IsIdentity(order)) return parent;
  TensorType result{source.dtype, {}};
  for (const int64_t d : order) result.dims.push_back(source.dims[d]);
  return Step(std::move(parent), ViewOp::kPermute, order, source, result);
}

const TensorType& ResultOf(const RecipePtr& recipe, const TensorType& base) {
  return recipe == nullptr ? base : recipe->result;
}

}  // namespace

ViewKey ViewKey::Of(const at::Tensor& t) {
  ViewKey key;
  key.dtype = t.scalar_type();
  key.conj = t.is_conj();
  key.neg = t.is_neg();
  key.offset = t.storage_offset();
  key.sizes.assign(t.sizes().begin(), t.sizes().end());
  key.strides.assign(t.strides().begin(), t.strides().end());
  return key;
}

bool ViewKey::IsOf(const at::Tensor& t) const {
  return offset == t.storage_offset() && t.sizes() == at::IntArrayRef(sizes.data(), sizes.size()) &&
         t.strides() == at::IntArrayRef(strides.data(), strides.size()) &&
         dtype == t.scalar_type() && conj == t.is_conj() && neg == t.is_neg();
}

// Up to this many recipes are searched one by one.
constexpr size_t kFew = 16;
constexpr size_t kMost = 4096;

RecipeTable::Entry* RecipeTable::FindEntry(const at::Tensor& view) {
  if (index_.empty()) {
    for (Entry& entry : all_) {
      if (entry.key.IsOf(view)) return &entry;
    }
    return nullptr;
  }
  const auto it = index_.find(ViewKey::Of(view));
  return it == index_.end() ? nullptr : &all_[it->second];
}

RecipeTable::Entry& RecipeTable::SlotEntry(const at::Tensor& view) {
  if (Entry* const known = FindEntry(view)) return *known;
  if (all_.size() == kMost) ForgetOlder();
  all_.push_back({ViewKey::Of(view), nullptr});
  if (all_.size() > kFew) {
    for (size_t k = index_.size(); k < all_.size(); ++k) index_.emplace(all_[k].key, k);
  }
  return all_.back();
}

void RecipeTable::ForgetOlder() {
  all_.erase(all_.begin(), all_.begin() + kMost / 2);
  index_.clear();
  for (size_t k = 0; k < all_.size(); ++k) index_.emplace(all_[k].key, k);
}

RecipeTable::Noted* RecipeTable::FindNotedEntry(const at::Tensor& view) {
  if (noted_.empty() || view.is_conj() || view.is_neg()) return nullptr;
  for (Noted& noted : noted_) {
    const TensorMeta& m = *noted.meta;
    if (m.dtype == view.scalar_type() && m.offset == view.storage_offset() &&
        view.sizes() == at::IntArrayRef(m.sizes.data(), m.sizes.size()) &&
        view.strides() == at::IntArrayRef(m.strides.data(), m.strides.size())) {
      return &noted;
    }
  }
  return nullptr;
}

RecipePtr* RecipeTable::Find(const at::Tensor& view) {
  if (Noted* const noted = FindNotedEntry(view)) return &noted->recipe;
  Entry* const entry = FindEntry(view);
  return entry == nullptr ? nullptr : &entry->recipe;
}

RecipePtr& RecipeTable::Slot(const at::Tensor& view) {
  if (Noted* const noted = FindNotedEntry(view)) return noted->recipe;
  return SlotEntry(view).recipe;
}

RecipePtr* RecipeTable::FindNoted(const at::Tensor& view, uint64_t serial) {
  // A TensorMeta does not say whether elements are conjugated or negated.
  if (serial == 0 || view.is_conj() || view.is_neg()) return nullptr;
  for (Noted& noted : noted_) {
    if (noted.serial == serial) return &noted.recipe;
  }
  if (!index_.empty()) return nullptr;
  for (Entry& entry : all_) {
    if (entry.known_as == serial) return &entry.recipe;
  }
  return nullptr;
}

RecipePtr* RecipeTable::Find(const at::Tensor& view, uint64_t serial) {
  if (RecipePtr* const noted = FindNoted(view, serial)) return noted;
  if (Noted* const noted = FindNotedEntry(view)) return &noted->recipe;
  Entry* const entry = FindEntry(view);
  if (entry == nullptr) return nullptr;
  if (!view.is_conj() && !view.is_neg()) entry->known_as = serial;
  return &entry->recipe;
}

void RecipeTable::Note(const at::Tensor& view, const TensorMetaPtr& meta, const RecipePtr& recipe) {
  if (FindNoted(view, meta->serial) != nullptr) return;
  const bool plain = !view.is_conj() && !view.is_neg();
  if (plain && meta->serial != 0 && noted_.size() < kFew && all_.empty()) {
    if (noted_.empty()) noted_.reserve(kFew);
    noted_.push_back({meta->serial, meta, recipe});
    return;
  }
  if (FindNotedEntry(view) != nullptr) return;
  Entry& entry = SlotEntry(view);
  if (entry.recipe == nullptr) entry.recipe = recipe;
  if (plain) entry.known_as = meta->serial;
}

void RecipeTable::clear() {
  noted_.clear();
  all_.clear();
  index_.clear();
}

bool IsBase(const BaseForm& form, const at::Tensor& t) {
  if (form.dtype != t.scalar_type() || t.storage_offset() != 0 || t.is_conj() || t.is_neg()) {
    return false;
  }
  if (t.sizes() != at::IntArrayRef(form.sizes.data(), form.sizes.size())) return false;
  for (size_t d = 0; d < form.sizes.size(); ++d) {
    // The stride of a dimension of size 1 does not matter.
    if (form.sizes[d] != 1 && form.strides[d] != t.stride(static_cast<int64_t>(d))) {
      return t.numel() == 0;
    }
  }
  return true;
}

bool IsDense(const at::Tensor& t) {
  return t.storage_offset() == 0 && !t.is_conj() && !t.is_neg() && Dense(t.sizes(), t.strides());
}

BaseForm FormOf(const at::Tensor& t) {
  return {.dtype = t.scalar_type(),
          .sizes = Dims(t.sizes().begin(), t.sizes().end()),
          .strides = Dims(t.strides().begin(), t.strides().end())};
}

BaseForm ContiguousForm(at::ScalarType dtype, at::IntArrayRef sizes) {
  Dims strides(sizes.size());
  int64_t next = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return {.dtype = dtype, .sizes = Dims(sizes.begin(), sizes.end()), .strides = std::move(strides)};
}

RecipePtr StridedRecipe(const BaseForm& form, const at::Tensor& t) {
  const TensorType base = TypeOf(form.dtype, at::IntArrayRef(form.sizes.data(), form.sizes.size()));
  RecipePtr r = PermuteTo(nullptr, base,
                          StorageOrder(at::IntArrayRef(form.sizes.data(), form.sizes.size()),
                                       at::IntArrayRef(form.strides.data(), form.strides.size())));
  // The elements in storage order, as one dimension, in the view's element type.
  const int64_t n = base.NumElements();
  TensorType flat{base.dtype, {n}};
  if (!(ResultOf(r, base) == flat)) {
    const TensorType source = ResultOf(r, base);
    r = Step(std::move(r), ViewOp::kReshape, {}, source, flat);
  }
  if (form.dtype != t.scalar_type()) {
    const TensorType cast =
        TypeOf(t.scalar_type(), {n * static_cast<int64_t>(c10::elementSize(form.dtype)) /
                                 static_cast<int64_t>(c10::elementSize(t.scalar_type()))});
    r = Step(std::move(r), ViewOp::kBitcast, {}, flat, cast);
    flat = cast;
  }
  const TensorType result = TypeOf(t.scalar_type(), t.sizes());
  const std::vector<int64_t> order = StorageOrder(t.sizes(), t.strides());
  const bool whole = IsDense(t) && t.numel() == flat.dims[0];
  if (whole) {
    TensorType stored{flat.dtype, {}};
    for (const int64_t d : order) stored.dims.push_back(t.size(d));
    if (!(stored == flat)) r = Step(std::move(r), ViewOp::kReshape, {}, flat, stored);
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int64_t>(i);
    r = PermuteTo(std::move(r), stored, inverse);
  } else {
    std::vector<int64_t> ints = {t.storage_offset()};
    ints.insert(ints.end(), t.strides().begin(), t.strides().end());
    r = Step(std::move(r), ViewOp::kStrided, std::move(ints), flat, result);
  }
  if (t.is_conj()) r = Step(std::move(r), ViewOp::kConj, {}, result, result);
  if (t.is_neg()) r = Step(std::move(r), ViewOp::kNeg, {}, result, result);
  return r;
}

at::Tensor ApplyOnHost(const Recipe& step, const at::Tensor& x) {
  const std::vector<int64_t>& i = step.ints;
  const std::vector<int64_t> dims(step.result.dims.begin(), step.result.dims.end());
  switch (step.op) {
    case ViewOp::kPermute:
      return x.permute(i);
    case ViewOp::kReshape:
      return x.reshape(dims);
    case ViewOp::kExpand:
      return x.expand(dims);
    case ViewOp::kSlice:
      return x.slice(i[0], i[1], i[2], i[3]);
    case ViewOp::kSelect:
      return x.select(i[0], i[1]);
    case ViewOp::kDiagonal:
      return x.diagonal(i[0], i[1], i[2]);
    case ViewOp::kUnfold:
      return x.unfold(i[0], i[1], i[2]);
    case ViewOp::kBitcast:
      return x.contiguous().view(runtime::ToScalarType(step.result.dtype));
    case ViewOp::kViewAsReal:
      return at::view_as_real(x.resolve_conj());
    case ViewOp::kViewAsComplex:
      return at::view_as_complex(x.contiguous());
    case ViewOp::kConj:
      return x.conj().resolve_conj();
    case ViewOp::kNeg:
      return x.neg();
    case ViewOp::kStrided:
      return x.contiguous().as_strided(dims, at::IntArrayRef(i).slice(1), i[0]);
  }
  return x;
}

std::vector<const Recipe*> Chain(const RecipePtr& recipe) {
  std::vector<const Recipe*> chain;
  for (const Recipe* r = recipe.get(); r != nullptr; r = r->parent.get()) chain.push_back(r);
  std::reverse(chain.begin(), chain.end());
  return chain;
}

bool IsBijection(ViewOp op) {
  switch (op) {
    case ViewOp::kPermute:
    case ViewOp::kReshape:
    case ViewOp::kBitcast:
    case ViewOp::kViewAsReal:
    case ViewOp::kViewAsComplex:
    case ViewOp::kConj:
    case ViewOp::kNeg:
      return true;
    default:
      return false;
  }
}

}  // namespace spmd::trace
