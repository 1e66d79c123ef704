// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/runtime/kernels/kernels.h"
#include "csrc/util/dims.h"

namespace spmd::runtime::kernels {
namespace {

// The inputs, of `in` many, that an output reads: see csrc/rules/tables/resample.h.
struct Resampling {
  int64_t step, start, stop, unit, in;
};

Tensor Resized(const Tensor& x, int64_t dim, int64_t size) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[dim] = size;
  return at::empty(sizes, x.options());
}

// One input of an output, with its weight.
struct Tap {
  int64_t input;
  double weight;
};
using Taps = std::vector<Tap>;

// Keys' cubic convolution: 1 at 0, and 0 at the other integers. PyTorch takes a = -0.75, and -0.5
// for antialiasing.
double Cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

double Linear(double x) { return std::max(0.0, 1 - std::abs(x)); }

struct Filter {
  double (*at)(double distance);  // an input's weight by its distance
  bool normalised;  // weights sum to 1; stretched over as many inputs as an output covers
  double reach;     // the distance from an output's position back to the first input that counts
  bool reflects = false;
};
Filter FilterOf(c10::string_view name) {
  if (name == "linear") return {Linear, false, 0};
  if (name == "cubic") return {[](double x) { return Cubic(x, -0.75); }, false, 1};
  if (name == "linear_aa") return {Linear, true, 1};
  if (name == "cubic_aa") return {[](double x) { return Cubic(x, -0.5); }, true, 2};
  if (name == "mean") return {[](double) { return 1.0; }, true, 0};
  if (name == "reflect") return {[](double) { return 1.0; }, false, 0, true};
  TORCH_CHECK(name == "nearest", "spmd resample: no filter ", name);
  return {[](double) { return 1.0; }, false, 0};
}

// The index `i` clamped or reflected into [0, in).
int64_t Inside(int64_t i, const Filter& filter, int64_t in) {
  if (filter.reflects) return i < 0 ? -i : std::min(i, 2 * (in - 1) - i);
  return std::clamp<int64_t>(i, 0, in - 1);
}

Taps TapsOf(int64_t output, const Filter& filter, const Resampling& r) {
  const int64_t first = FloorDiv(output * r.step + r.start, r.unit);
  const int64_t end = FloorDiv(output * r.step + r.stop, r.unit);
  const double begin = static_cast<double>(output * r.step + r.start) / static_cast<double>(r.unit);
  Taps taps;
  if (!filter.normalised) {
    for (int64_t i = first; i < end; ++i) {
      const double distance = static_cast<double>(i) - (begin + filter.reach);
      taps.push_back({Inside(i, filter, r.in), filter.at(distance)});
    }
    return taps;
  }
  const double width = std::max(1.0, static_cast<double>(r.step) / static_cast<double>(r.unit));
  // Input i covers [i, i + 1) and its middle counts; `start` has ½ added for rounding.
  const double center = begin - 0.5 + filter.reach * width;
  double sum = 0;
  for (int64_t i = std::max<int64_t>(first, 0); i < std::min(end, r.in); ++i) {
    taps.push_back({i, filter.at((static_cast<double>(i) + 0.5 - center) / width)});
    sum += taps.back().weight;
  }
  for (Tap& tap : taps) tap.weight /= sum;
  return taps;
}

// Row i of the result along `dim` is the weighted sum of the rows of x in taps[i]. Other rows are
// not read, so NaN or infinity in them has no effect.
Tensor Combined(const Tensor& x, int64_t dim, const std::vector<Taps>& taps) {
  const auto n = static_cast<int64_t>(taps.size());
  size_t most = 0;
  for (const Taps& t : taps) most = std::max(most, t.size());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[dim] = n;
  Tensor sum;
  for (size_t k = 0; k < most; ++k) {
    std::vector<int64_t> to, from;
    std::vector<double> weights;
    bool copies = true;
    for (int64_t i = 0; i < n; ++i) {
      if (k >= taps[i].size()) continue;
      to.push_back(i);
      from.push_back(taps[i][k].input);
      weights.push_back(taps[i][k].weight);
      copies = copies && weights.back() == 1;
    }
    const auto indices = [&](const std::vector<int64_t>& list) {
      return at::tensor(list, x.options().dtype(at::kLong));
    };
    const bool all = static_cast<int64_t>(to.size()) == n;
    Tensor part = x.index_select(dim, indices(from));
    if (!copies) {
      std::vector<int64_t> broadcast(x.dim(), 1);
      broadcast[dim] = static_cast<int64_t>(to.size());
      part.mul_(at::tensor(weights, x.options()).view(broadcast));
    }
    if (all) {
      sum = sum.defined() ? sum.add_(part) : part;
      continue;
    }
    if (!sum.defined()) sum = at::zeros(sizes, x.options());
    const Tensor rows = indices(to);
    sum.index_copy_(dim, rows, part.add_(sum.index_select(dim, rows)));
  }
  return sum.defined() ? sum : at::zeros(sizes, x.options());
}

}  // namespace

Tensor Resample(const Tensor& input, int64_t dim, c10::string_view filter, int64_t step,
                int64_t start, int64_t stop, int64_t unit, int64_t num_in, int64_t num_out,
                int64_t from, int64_t offset, int64_t size) {
  if (input.is_meta()) return Resized(input, dim, size);
  const Filter f = FilterOf(filter);
  const Resampling r{step, start, stop, unit, num_in};
  std::vector<Taps> taps(size);
  for (int64_t i = 0; i < size; ++i) {
    taps[i] = TapsOf(offset + i, f, r);
    for (Tap& tap : taps[i]) tap.input -= from;
  }
  return Combined(input, dim, taps);
}

Tensor ResampleDInput(const Tensor& grad, int64_t dim, c10::string_view filter, int64_t step,
                      int64_t start, int64_t stop, int64_t unit, int64_t num_in, int64_t num_out,
                      int64_t from, int64_t offset, int64_t size) {
  if (grad.is_meta()) return Resized(grad, dim, size);
  const Filter f = FilterOf(filter);
  const Resampling r{step, start, stop, unit, num_in};
  std::vector<Taps> transposed(size);
  for (int64_t o = 0; o < grad.size(dim); ++o) {
    for (const Tap& tap : TapsOf(from + o, f, r)) {
      const int64_t i = tap.input - offset;
      if (i >= 0 && i < size) transposed[i].push_back({o, tap.weight});
    }
  }
  return Combined(grad, dim, transposed);
}

}  // namespace spmd::runtime::kernels
