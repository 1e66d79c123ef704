// SPDX-License-Identifier: Apache-2.0
// Bags of equal size, which F.embedding_bag makes of indices in rows: row b is bag b.
//
//   F.embedding_bag(i, w)   i [B, L]  →  embedding_bag(w, i.flatten(), arange(0, B·L, L))
//                                     =  embedding(w, i).sum(1)
//
// Written as on the last line, a sharding of the rows goes through the op and its gradient, which
// offsets known only as data do not allow.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace spmd::trace {

enum BagMode : int64_t { kSumOfBag = 0, kMeanOfBag = 1, kMaxOfBag = 2 };

// The arguments of aten::_embedding_bag.
struct BagCall {
  at::Tensor weight, indices, offsets;
  bool scale_grad_by_freq = false;
  int64_t mode = kSumOfBag;
  bool sparse = false;
  at::Tensor per_sample_weights;  // undefined if there are none
  bool include_last_offset = false;
  int64_t padding_idx = -1;  // -1 for none
};

// What aten::_embedding_bag returns: the output, the bag of each index, the sizes of the bags, the
// indices of greatest elements.
using BagResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The results in differentiable ops, if the offsets are a pending `arange` that makes equal bags;
// nullopt for other calls, and for those that PyTorch refuses.
std::optional<BagResults> EqualBags(const BagCall& call);

}  // namespace spmd::trace
