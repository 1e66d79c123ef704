// SPDX-License-Identifier: Apache-2.0
// Bags of rows: their sum, mean or greatest elements, in ops that read and write by index. What
// PyTorch's kernels keep for the gradient depends on which of them ran. Invalid offsets lead to an
// index that is out of range.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/equal_bags.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// The indices that count.
struct Entries {
  Entries(const at::Tensor& given, int64_t padding) : indices(given.to(at::kLong)) {
    if (padding >= 0) counts = indices.ne(padding);
  }
  // Replaces the rows of padding indices by `fill`; `values` has a row for each index.
  at::Tensor Kept(const at::Tensor& values, const at::Scalar& fill) const {
    if (!counts.defined()) return values;
    const at::Tensor mask = values.dim() > 1 ? counts.unsqueeze(1) : counts;
    return values.masked_fill(mask.logical_not(), fill);
  }
  at::Tensor indices;
  at::Tensor counts;  // undefined if all count
};

// The bag of each index: the number of bags that have begun, minus one.
at::Tensor BagOfEach(const at::Tensor& starts, int64_t indices) {
  const at::TensorOptions options = starts.options().dtype(at::kLong);
  const at::Tensor begun =
      at::zeros({indices + 1}, options).index_add(0, starts, at::ones({starts.size(0)}, options));
  return begun.cumsum(0).slice(0, 0, indices).sub(1);
}

// Sums the rows that go to the same place.
at::Tensor Gathered(int64_t places, const at::Tensor& place, const at::Tensor& rows) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = places;
  return at::zeros(sizes, rows.options()).index_add(0, place, rows);
}

struct Bags {
  at::Tensor output;
  at::Tensor winners;  // the index that each greatest element came from
};

Bags Greatest(const at::Tensor& rows, const Entries& entries, const at::Tensor& bag,
              const at::Tensor& sizes) {
  const double least = -std::numeric_limits<double>::infinity();
  const int64_t bags = sizes.size(0), count = rows.size(0), width = rows.size(1);
  const at::Tensor kept = entries.Kept(rows, least);
  const at::Tensor places = bag.unsqueeze(1).expand({count, width});
  const at::Tensor empty = sizes.eq(0).unsqueeze(1);
  const at::Tensor top = at::full({bags, width}, least, rows.options())
                             .scatter_reduce(0, places, kept, "amax", /*include_self=*/true);
  // Of equal elements the first wins.
  const at::Tensor number = at::arange(count, bag.options()).unsqueeze(1);
  const at::Tensor wins = kept.eq(top.index_select(0, bag));
  const at::Tensor candidate =
      at::where(wins, number, at::scalar_tensor(count - 1, number.options()));
  const at::Tensor first = at::full({bags, width}, count - 1, bag.options())
                               .scatter_reduce(0, places, candidate, "amin", true);
  const at::Tensor winners = entries.indices.index_select(0, first.view({-1})).view_as(first);
  return {top.masked_fill(empty, 0), winners.masked_fill(empty, 0)};
}

void Forward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args peeked = PeekArguments(op, stack);
  const bool takes = state.shapes.Infer(op, peeked).ok && Buffer::IsOurs(peeked[0].toTensor());
  if (!takes || peeked[1].toTensor().dim() != 1 || peeked[1].toTensor().numel() == 0) {
    RunOnHost(state, op, stack);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  if (const auto equal =
          EqualBags({a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toBool(), a[4].toInt(),
                     a[5].toBool(), TensorOrUndefined(a[6]), a[7].toBool(), a[8].toInt()})) {
    const auto& [output, bag, sizes, greatest] = *equal;
    for (const at::Tensor& t : {output, bag, sizes, greatest}) stack->push_back(t);
    return;
  }
  const at::Tensor weight = a[0].toTensor(), offsets = a[2].toTensor().to(at::kLong),
                   per_sample = TensorOrUndefined(a[6]);
  const int64_t mode = a[4].toInt();
  const Entries entries(a[1].toTensor(), a[8].toInt());
  const int64_t bags = offsets.size(0) - (a[7].toBool() ? 1 : 0);
  const int64_t count = entries.indices.size(0);
  const at::Tensor bag = BagOfEach(offsets.slice(0, 0, bags), count);
  const bool half = at::isReducedFloatingType(weight.scalar_type());
  at::Tensor rows = weight.index_select(0, entries.indices);
  if (half) rows = rows.to(at::kFloat);
  at::Tensor sizes = at::zeros({bags}, bag.options());
  if (mode != kSumOfBag)
    sizes = Gathered(bags, bag, entries.Kept(at::ones({count}, bag.options()), 0));
  Bags result{at::Tensor(), at::zeros({bags}, bag.options())};
  if (mode == kMaxOfBag) {
    result = Greatest(rows, entries, bag, sizes);
  } else {
    if (per_sample.defined()) rows = rows.mul(per_sample.unsqueeze(1));
    result.output = Gathered(bags, bag, entries.Kept(rows, 0));
    if (mode == kMeanOfBag) result.output = result.output.div(sizes.clamp_min(1).unsqueeze(1));
  }
  stack->push_back(result.output.to(weight.scalar_type()));
  for (const at::Tensor& t : {bag, sizes, result.winners}) {
    stack->push_back(t.to(a[1].toTensor().scalar_type()));
  }
}

void EmbeddingBagBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args peeked = PeekArguments(op, stack);
  const bool sparse = peeked[9].toBool();
  if (sparse || peeked[3].toTensor().numel() != peeked[1].toTensor().numel() ||
      peeked[1].toTensor().numel() == 0) {
    RunOnHost(state, op, stack);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor grad = a[0].toTensor(), bag = a[3].toTensor(), sizes = a[4].toTensor(),
                   per_sample = TensorOrUndefined(a[10]);
  const int64_t rows = a[6].toInt(), mode = a[8].toInt();
  const Entries entries(a[1].toTensor(), a[11].toInt());
  if (mode == kMaxOfBag) {
    const at::Tensor kept = grad.masked_fill(sizes.eq(0).unsqueeze(1), 0);
    stack->push_back(at::zeros({rows, grad.size(1)}, grad.options())
                         .scatter_add(0, a[5].toTensor().to(at::kLong), kept));
    return;
  }
  at::Tensor each = grad.index_select(0, bag);
  if (per_sample.defined()) each = each.mul(per_sample.unsqueeze(1));
  if (mode == kMeanOfBag) each = each.div(sizes.clamp_min(1).index_select(0, bag).unsqueeze(1));
  if (a[7].toBool()) {
    const at::Tensor ones = at::ones({entries.indices.size(0)}, entries.indices.options());
    const at::Tensor often = Gathered(rows, entries.indices, ones);
    each = each.div(often.index_select(0, entries.indices).unsqueeze(1));
  }
  stack->push_back(Gathered(rows, entries.indices, entries.Kept(each, 0)));
}

void PerSampleBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args peeked = PeekArguments(op, stack);
  if (peeked[4].toTensor().numel() != peeked[2].toTensor().numel() ||
      peeked[2].toTensor().numel() == 0) {
    RunOnHost(state, op, stack);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const Entries entries(a[2].toTensor(), a[6].toInt());
  const at::Tensor rows = a[1].toTensor().index_select(0, entries.indices);
  const at::Tensor slope = a[0].toTensor().index_select(0, a[4].toTensor()).mul(rows).sum(1);
  stack->push_back(entries.Kept(slope, 0));
}

constexpr HandlerRow kEmbeddingBagHandlers[] = {
    {"aten::_embedding_bag", &Forward},
    {"aten::_embedding_bag_backward", &EmbeddingBagBackward},
    {"aten::_embedding_bag_forward_only", &Forward},
    {"aten::_embedding_bag_per_sample_weights_backward", &PerSampleBackward},
};
static_assert(IsSortedAndUnique(kEmbeddingBagHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> EmbeddingBagHandlers() { return kEmbeddingBagHandlers; }

}  // namespace spmd::trace
