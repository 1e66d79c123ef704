// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/choose_elements.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace spmd::trace {

namespace {

std::vector<int64_t> ContiguousStrides(at::IntArrayRef size) {
  std::vector<int64_t> strides(size.size(), 1);
  for (int64_t d = static_cast<int64_t>(size.size()) - 2; d >= 0; --d) {
    strides[d] = strides[d + 1] * size[d + 1];
  }
  return strides;
}

}  // namespace

at::Tensor PlacesOf(at::IntArrayRef size, at::IntArrayRef stride, int64_t start,
                    const at::TensorOptions& options) {
  at::Tensor places = at::scalar_tensor(start, options.dtype(at::kLong));
  for (size_t d = 0; d < size.size(); ++d) {
    const at::Tensor steps = at::arange(size[d], places.options());
    places = places.unsqueeze(-1).add(steps, stride[d]);
  }
  return places;
}

Ranks RanksOf(const at::Tensor& flags) {
  at::Tensor totals = flags.to(at::kLong);
  if (flags.dim() == 0) return {totals, totals};
  at::Tensor ranks;
  // For the last dimension, what precedes an element in its row; for the others, the rows before.
  for (int64_t d = flags.dim() - 1; d >= 0; --d) {
    at::Tensor up_to = totals.cumsum(d);
    if (!ranks.defined()) {
      ranks = up_to;
    } else {
      up_to = up_to.sub(totals);
      for (int64_t k = d + 1; k < flags.dim(); ++k) up_to = up_to.unsqueeze(-1);
      ranks = ranks.add(up_to);
    }
    totals = totals.sum(d);
  }
  return {ranks, totals};
}

at::Tensor Packed(const at::Tensor& values, const at::Tensor& flags, const Ranks& ranks,
                  int64_t count) {
  // The slot to which each element writes; all elements that are not chosen write to one extra
  // slot.
  at::Tensor slots = at::where(flags, ranks.inclusive.sub(1), count).clamp_max(count);
  return at::zeros({count + 1}, values.options())
      .index_put({std::move(slots)}, values, /*accumulate=*/true)
      .narrow(0, 0, count);
}

at::Tensor ChosenPlaces(const at::Tensor& flags, const Ranks& ranks, int64_t count) {
  const at::Tensor places =
      PlacesOf(flags.sizes(), ContiguousStrides(flags.sizes()), 0, ranks.total.options());
  return Packed(places, flags, ranks, count);
}

std::vector<at::Tensor> CoordinatesOf(const at::Tensor& places, at::IntArrayRef size) {
  const std::vector<int64_t> strides = ContiguousStrides(size);
  std::vector<at::Tensor> coordinates;
  for (size_t d = 0; d < size.size(); ++d) {
    at::Tensor along = strides[d] == 1 ? places : places.div(strides[d], "floor");
    if (d > 0) along = along.remainder(size[d]);
    coordinates.push_back(std::move(along));
  }
  return coordinates;
}

namespace {

// The places of all true flags. Waits for their number.
at::Tensor AllPlaces(const at::Tensor& flags) {
  const Ranks ranks = RanksOf(flags);
  const int64_t count = flags.numel() == 0 ? 0 : ranks.total.item<int64_t>();
  if (count == 0) return at::empty({0}, flags.options().dtype(at::kLong));
  return ChosenPlaces(flags, ranks, count);
}

}  // namespace

at::Tensor ChosenRows(const at::Tensor& flags) {
  const at::Tensor places = AllPlaces(flags);
  if (flags.dim() == 0) return at::empty({0, places.size(0)}, places.options()).t();
  return at::stack(CoordinatesOf(places, flags.sizes()), 0).t();
}

std::vector<at::Tensor> ChosenCoordinates(const at::Tensor& flags) {
  return CoordinatesOf(AllPlaces(flags), flags.sizes());
}

}  // namespace spmd::trace
