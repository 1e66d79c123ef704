// SPDX-License-Identifier: Apache-2.0
// How a view derives from its Buffer's value: as ops, never as strides alone.
//
//   base f32[8,4]   x.t()[1:3]   =   permute([1,0]) ; slice(dim=0, start=1, end=3, step=1)
//
// Reading a view replays the steps forward. Writing into it replays them backward with the new
// value: bijections (permute, reshape, …) are inverted, and the other steps scatter into the old
// value.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/type.h"

namespace spmd::trace {

enum class ViewOp : uint8_t {
  kPermute,   // ints: the permutation
  kReshape,   // result dims
  kExpand,    // result dims
  kSlice,     // ints: dim, start, end, step
  kSelect,    // ints: dim, index
  kDiagonal,  // ints: offset, dim1, dim2
  kUnfold,    // ints: dimension, size, step
  kBitcast,   // result dtype: view.dtype
  kViewAsReal,
  kViewAsComplex,
  kConj,
  kNeg,
  kStrided,  // ints: offset, then strides, in elements of the base's storage order
};

// A step of a chain; `parent` is null for a step on the base itself. Immutable.
struct Recipe {
  std::shared_ptr<const Recipe> parent;
  ViewOp op;
  std::vector<int64_t> ints;
  TensorType source;  // the type to which the step is applied
  TensorType result;
};
using RecipePtr = std::shared_ptr<const Recipe>;

// The tensor that a Buffer's value is: dense and non-overlapping, with any order of strides and
// offset 0.
struct BaseForm {
  // The serial of a TensorMeta (csrc/trace/shape/shape_inference.h) that was found to have this
  // form, 0 if none was yet. A newly assigned form has none. It is the first member, since nothing
  // else is read if it matches.
  uint64_t known_as = 0;
  at::ScalarType dtype = at::kFloat;
  Dims sizes;
  Dims strides;
};

struct TensorMeta;  // csrc/trace/shape/shape_inference.h
using TensorMetaPtr = std::shared_ptr<const TensorMeta>;

struct ViewKey {
  at::ScalarType dtype;
  bool conj = false;
  bool neg = false;
  int64_t offset = 0;
  Dims sizes;
  Dims strides;
  static ViewKey Of(const at::Tensor& tensor);
  bool IsOf(const at::Tensor& tensor) const;
  friend bool operator==(const ViewKey& a, const ViewKey& b) {
    return a.dtype == b.dtype && a.conj == b.conj && a.neg == b.neg && a.offset == b.offset &&
           a.sizes == b.sizes && a.strides == b.strides;
  }
  template <typename H>
  friend H AbslHashValue(H h, const ViewKey& k) {
    return H::combine(std::move(h), k.dtype, k.conj, k.neg, k.offset, k.sizes, k.strides);
  }
};

// The recipes of a Buffer's views. There are usually few, and they are searched one by one. Of
// thousands (`data[i * b:(i + 1) * b]` in a loop) the older ones are forgotten; such a view is then
// read by its strides.
class RecipeTable {
 public:
  // The recipe of `view`; null if there is none.
  RecipePtr* Find(const at::Tensor& view);
  // The recipe of `view`; adds a null one if there is none.
  RecipePtr& Slot(const at::Tensor& view);
  // The same for a view whose metadata are those of the TensorMeta with this serial
  // (csrc/trace/shape/shape_inference.h), 0 for none: what was noted or found under the serial is
  // found again without looking at the metadata. `FindNoted` finds only such recipes.
  RecipePtr* FindNoted(const at::Tensor& view, uint64_t serial);
  RecipePtr* Find(const at::Tensor& view, uint64_t serial);
  // Notes the recipe of `view`, unless it is known. `meta` are the view's metadata, with a serial.
  void Note(const at::Tensor& view, const TensorMetaPtr& meta, const RecipePtr& recipe);
  void clear();
  size_t size() const { return noted_.size() + all_.size(); }

 private:
  struct Entry {
    ViewKey key;
    RecipePtr recipe;
    uint64_t known_as = 0;  // a serial
  };
  // Most views are made again in every step by replayed calls; for these no key is made.
  struct Noted {
    uint64_t serial;
    TensorMetaPtr meta;
    RecipePtr recipe;
  };
  Entry* FindEntry(const at::Tensor& view);
  Entry& SlotEntry(const at::Tensor& view);
  void ForgetOlder();
  Noted* FindNotedEntry(const at::Tensor& view);

  std::vector<Noted> noted_;  // few
  std::vector<Entry> all_;
  absl::flat_hash_map<ViewKey, size_t> index_;  // empty while there are few
};

// True if `tensor` is the base itself.
bool IsBase(const BaseForm& form, const at::Tensor& tensor);
// True for a dense tensor at offset 0, whose metadata may serve as a form.
bool IsDense(const at::Tensor& tensor);
BaseForm FormOf(const at::Tensor& tensor);
BaseForm ContiguousForm(at::ScalarType dtype, at::IntArrayRef sizes);

// The chain that makes `tensor` from the base by strides alone: a permutation and a reshape if that
// suffices, otherwise kStrided (a gather over the base in storage order).
RecipePtr StridedRecipe(const BaseForm& form, const at::Tensor& tensor);

// Applies a step to a host tensor, for values that are on the host already.
at::Tensor ApplyOnHost(const Recipe& step, const at::Tensor& source);
// The whole chain, starting at the base.
std::vector<const Recipe*> Chain(const RecipePtr& recipe);
bool IsBijection(ViewOp op);

}  // namespace spmd::trace
