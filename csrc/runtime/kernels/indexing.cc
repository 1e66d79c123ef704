// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

// The place of global indices in a part [first, first + length) of a dimension of `size`.
struct Local {
  Tensor held;   // whether the part has the index
  Tensor index;  // relative to the part; any number if it is not held
};

Local LocalIndex(const Tensor& index, int64_t first, int64_t length) {
  Tensor local = index.to(at::kLong).sub(first);
  return {local.ge(0).logical_and_(local.lt(length)), local};
}

// The indices clamped to the part, so that indices which are not held read some element.
Tensor Readable(const Local& local, int64_t length) {
  return local.index.clamp(0, std::max<int64_t>(length - 1, 0));
}

// The first index outside [low, high), if there is one.
std::optional<int64_t> FirstOutside(const Tensor& index, int64_t low, int64_t high) {
  if (index.numel() == 0) return std::nullopt;
  const Tensor bad = index.lt(low).logical_or_(index.ge(high));
  if (!bad.any().item<bool>()) return std::nullopt;
  return index.masked_select(bad)[0].item<int64_t>();
}

void CheckIndex(const Tensor& index, int64_t dim, int64_t size) {
  if (const auto bad = FirstOutside(index, 0, size)) {
    TORCH_CHECK(false, "index ", *bad, " is out of bounds for dimension ", dim, " with size ",
                size);
  }
}

// The indices with negative ones counted from the end.
Tensor Wrapped(const Tensor& index, int64_t dim, int64_t size, bool may_be_negative) {
  const Tensor wide = index.to(at::kLong);
  if (const auto bad = FirstOutside(wide, may_be_negative ? -size : 0, size)) {
    TORCH_CHECK_INDEX(false, "index ", *bad, " is out of bounds for dimension ", dim, " with size ",
                      size);
  }
  return may_be_negative ? wide.where(wide.ge(0), wide.add(size)) : wide;
}

// What one index tensor per replaced dimension, interpreted as in NumPy, selects of a part.
struct Selection {
  std::vector<int64_t> replaced, kept;
  std::vector<Tensor> index;  // one per replaced dimension, broadcast and within the part
  Tensor held;
  bool adjacent = false;
  bool nothing_held = false;
  bool all_held = true;  // the part has all indices, whatever they are
};

// `batch` lists dimensions that their index numbers one by one: a part holds every index of them
// for which it is asked.
Selection Select(const Tensor& self, const c10::List<OptionalTensor>& indices, IntArrayRef first,
                 IntArrayRef size, bool may_be_negative, IntArrayRef batch) {
  Selection s;
  std::vector<bool> numbered;
  std::vector<Tensor> given;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const OptionalTensor index =
        d < static_cast<int64_t>(indices.size()) ? indices.get(d) : OptionalTensor();
    if (!index.has_value() || !index->defined()) {
      s.kept.push_back(d);
      continue;
    }
    s.replaced.push_back(d);
    numbered.push_back(d < static_cast<int64_t>(batch.size()) && batch[d] >= 0);
    const bool whole = first[d] == 0 && self.size(d) == size[d];
    s.all_held = s.all_held && (numbered.back() || whole);
    given.push_back(numbered.back() ? index->to(at::kLong)
                                    : Wrapped(*index, d, size[d], may_be_negative));
  }
  given = at::broadcast_tensors(given);
  for (size_t i = 0; i < given.size(); ++i) {
    const int64_t d = s.replaced[i], length = self.size(d);
    if (s.all_held) {
      s.index.push_back(first[d] == 0 ? given[i] : given[i].sub(first[d]));
      continue;
    }
    const Local local = LocalIndex(given[i], first[d], length);
    s.held = s.held.defined() ? s.held.logical_and(local.held) : local.held;
    s.index.push_back(Readable(local, length));
    s.nothing_held = s.nothing_held || length == 0;
  }
  s.adjacent =
      s.replaced.back() - s.replaced.front() + 1 == static_cast<int64_t>(s.replaced.size());
  return s;
}

// The selection's indices as a list over all dimensions.
c10::List<OptionalTensor> Within(const Selection& s, int64_t rank) {
  c10::List<OptionalTensor> within;
  size_t next = 0;
  for (int64_t d = 0; d < rank; ++d) {
    const bool replaced = next < s.replaced.size() && s.replaced[next] == d;
    within.push_back(replaced ? OptionalTensor(s.index[next++]) : std::nullopt);
  }
  return within;
}

std::vector<int64_t> Joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// `self` with one more slice along `dim`, into which elements that are not held are written.
Tensor WithSpare(const Tensor& self, int64_t dim) {
  std::vector<int64_t> size = self.sizes().vec();
  size[dim] = 1;
  return at::cat({self, at::zeros(size, self.options())}, dim);
}

// The indices within a part of `length`; those that are not held point to the spare slice behind
// it.
Tensor OrSpare(const Local& local, int64_t length) {
  return local.index.masked_fill(local.held.logical_not(), length);
}

Tensor WithoutSpare(const Tensor& extended, int64_t dim) {
  return extended.narrow(dim, 0, extended.size(dim) - 1).contiguous();
}

// The indices of a slice that a part has.
struct Overlap {
  int64_t begin, length;
};
Overlap OverlapOf(const Tensor& part, int64_t dim, int64_t start, int64_t length, int64_t first,
                  int64_t size) {
  TORCH_CHECK(start >= 0 && length >= 0 && start + length <= size, "start (", start, ") + length (",
              length, ") exceeds dimension size (", size, ").");
  const int64_t begin = std::max(start, first);
  const int64_t end = std::min(start + length, first + part.size(dim));
  return {begin, std::max<int64_t>(end - begin, 0)};
}

}  // namespace

Tensor SlicePart(const Tensor& self, int64_t dim, int64_t start, int64_t length, int64_t first,
                 int64_t size) {
  const Overlap held = OverlapOf(self, dim, start, length, first, size);
  if (held.length == length) return self.narrow(dim, start - first, length).clone();
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dim] = length;
  Tensor slice = at::zeros(sizes, self.options());
  if (held.length > 0) {
    slice.narrow(dim, held.begin - start, held.length)
        .copy_(self.narrow(dim, held.begin - first, held.length));
  }
  return slice;
}

Tensor SlicePutPart(const Tensor& self, const Tensor& src, int64_t dim, int64_t start,
                    int64_t first, int64_t size) {
  Tensor result = self.clone();
  return SlicePutPart_(result, src, dim, start, first, size);
}

Tensor& SlicePutPart_(Tensor& self, const Tensor& src, int64_t dim, int64_t start, int64_t first,
                      int64_t size) {
  const Overlap held = OverlapOf(self, dim, start, src.size(dim), first, size);
  if (held.length > 0) {
    self.narrow(dim, held.begin - first, held.length)
        .copy_(src.narrow(dim, held.begin - start, held.length));
  }
  return self;
}

Tensor GatherPart(const Tensor& self, const Tensor& index, int64_t dim, int64_t first,
                  int64_t size) {
  if (self.is_meta()) return at::empty(index.sizes(), self.options());
  CheckIndex(index, dim, size);
  const int64_t length = self.size(dim);
  if (length == 0 || index.numel() == 0) return at::zeros(index.sizes(), self.options());
  const Local local = LocalIndex(index, first, length);
  return self.gather(dim, Readable(local, length)).masked_fill_(local.held.logical_not(), 0);
}

Tensor ScatterPart(const Tensor& self, const Tensor& index, const Tensor& src, int64_t dim,
                   std::string_view reduce, bool include_self, int64_t first, int64_t size) {
  if (self.is_meta()) return at::empty_like(self);
  CheckIndex(index, dim, size);
  if (index.numel() == 0 || self.numel() == 0) return self.clone();
  const Tensor where = OrSpare(LocalIndex(index, first, self.size(dim)), self.size(dim));
  Tensor out = WithSpare(self, dim);
  if (reduce == "set") {
    out.scatter_(dim, where, src);
  } else if (reduce == "add") {
    out.scatter_add_(dim, where, src);
  } else if (reduce == "multiply") {
    out.scatter_(dim, where, src, "multiply");
  } else {
    out.scatter_reduce_(dim, where, src, reduce, include_self);
  }
  return WithoutSpare(out, dim);
}

Tensor IndexReduce(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                   std::string_view reduce, bool include_self) {
  if (self.dim() < 2 || self.numel() != self.size(dim)) {
    return self.index_reduce(dim, index, source, reduce, include_self);
  }
  return self.reshape({-1})
      .index_reduce(0, index, source.reshape({-1}), reduce, include_self)
      .view(self.sizes());
}

Tensor IndexWritePart(const Tensor& self, const Tensor& index, const Tensor& source, int64_t dim,
                      std::string_view reduce, bool include_self, const c10::Scalar& alpha,
                      int64_t first, int64_t size) {
  if (self.is_meta()) return at::empty_like(self);
  const Tensor wide = Wrapped(index, dim, size, /*may_be_negative=*/false);
  if (index.numel() == 0 || self.numel() == 0) return self.clone();
  const Tensor where = OrSpare(LocalIndex(wide, first, self.size(dim)), self.size(dim));
  Tensor out = WithSpare(self, dim);
  if (reduce == "set") {
    out.index_copy_(dim, where, source);
  } else if (reduce == "add") {
    out.index_add_(dim, where, source, alpha);
  } else {
    out = IndexReduce(out, dim, where, source, reduce, include_self);
  }
  return WithoutSpare(out, dim);
}

Tensor IndexPart(const Tensor& self, const c10::List<OptionalTensor>& indices, IntArrayRef first,
                 IntArrayRef size, bool may_be_negative, IntArrayRef batch) {
  if (self.is_meta()) return self.index(indices);
  const Selection s = Select(self, indices, first, size, may_be_negative, batch);
  if (s.all_held) return self.index(Within(s, self.dim()));
  std::vector<int64_t> lead, dims = s.held.sizes().vec(), rest;
  for (int64_t d : s.kept) {
    (s.adjacent && d < s.replaced.front() ? lead : rest).push_back(self.size(d));
  }
  const std::vector<int64_t> result = Joined(Joined(lead, dims), rest);
  if (s.nothing_held) return at::zeros(result, self.options());
  dims.insert(dims.end(), rest.size(), 1);
  return self.index(Within(s, self.dim())).masked_fill_(s.held.logical_not().view(dims), 0);
}

// The replaced dimensions are moved to the front, and the held elements become one list.
Tensor IndexPutPart(const Tensor& self, const c10::List<OptionalTensor>& indices,
                    const Tensor& values, bool accumulate, IntArrayRef first, IntArrayRef size,
                    bool may_be_negative, IntArrayRef batch) {
  if (self.is_meta()) return at::empty_like(self);
  const Selection s = Select(self, indices, first, size, may_be_negative, batch);
  if (s.all_held) return self.index_put(Within(s, self.dim()), values, accumulate);
  if (s.nothing_held || s.held.numel() == 0) return self.clone();
  const std::vector<int64_t> order = Joined(s.replaced, s.kept);
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);

  // The values are [lead…, places…, rest…] and become [places…, lead…, rest…].
  std::vector<int64_t> lead, rest;
  for (int64_t d : s.kept) {
    (s.adjacent && d < s.replaced.front() ? lead : rest).push_back(self.size(d));
  }
  const std::vector<int64_t> places = s.held.sizes().vec();
  Tensor from = values.expand(Joined(Joined(lead, places), rest));
  for (size_t i = 0; i < places.size(); ++i) {
    from = from.movedim(static_cast<int64_t>(lead.size() + i), static_cast<int64_t>(i));
  }
  const Tensor chosen = s.held.reshape({-1}).nonzero().squeeze(1);
  from = from.reshape(Joined({s.held.numel()}, Joined(lead, rest))).index_select(0, chosen);
  c10::List<OptionalTensor> within;
  for (const Tensor& index : s.index) {
    within.push_back(index.reshape({-1}).index_select(0, chosen));
  }
  const Tensor copy = self.permute(order).clone(at::MemoryFormat::Contiguous);
  return copy.index_put_(within, from, accumulate).permute(back);
}

}  // namespace spmd::runtime::kernels
