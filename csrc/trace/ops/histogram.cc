// SPDX-License-Identifier: Apache-2.0
// Histograms. The counts of shards add up once the bins are known. If no bounds are given, the
// least and the greatest element are read, as on CUDA: the bins are then numbers in the program.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_histogramdd_bin_edges.h>
#include <ATen/ops/_histogramdd_from_bin_tensors.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// Integers are supported, as on CUDA; the CPU's kernel supports floating point only.
void Histc(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const int64_t bins = a[1].toInt();
  const at::AutoDispatchBelowADInplaceOrView below;
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    torch::jit::drop(*stack, op.args.size());
    const at::Tensor counts =
        at::histc(self.to(at::kDouble), bins, a[2].toScalar(), a[3].toScalar());
    stack->push_back(counts.to(self.scalar_type()));
    return;
  }
  double low = a[2].toScalar().toDouble(), high = a[3].toScalar().toDouble();
  if (low != high || self.numel() == 0 || !at::isFloatingType(self.scalar_type())) {
    RunGeneric(state, op, stack);
    return;
  }
  torch::jit::drop(*stack, op.args.size());
  low = at::amin(self).item<double>();
  high = at::amax(self).item<double>();
  if (low == high) {
    low -= 1;
    high += 1;
  }
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "range of [", low, ", ", high,
              "] is not finite");
  stack->push_back(at::histc(self, bins, low, high));
}

struct Range {
  double low = 0;
  double high = 1;
};

// The range of each column of `self`, or the given ones.
std::vector<Range> RangesOf(const at::Tensor& self, const c10::IValue& given) {
  std::vector<Range> ranges(self.size(-1));
  if (!given.isNone()) {
    const std::vector<double> bounds = given.toDoubleVector();
    TORCH_CHECK(bounds.size() == 2 * ranges.size(), "torch.histogramdd(): for a ", ranges.size(),
                "-dimensional histogram range should have ", 2 * ranges.size(),
                " elements, but got ", bounds.size());
    for (size_t d = 0; d < ranges.size(); ++d) ranges[d] = {bounds[2 * d], bounds[2 * d + 1]};
  } else if (self.numel() > 0) {
    const at::Tensor rows = self.reshape({-1, self.size(-1)});
    const at::Tensor low = at::amin(rows, 0).cpu().to(at::kDouble);
    const at::Tensor high = at::amax(rows, 0).cpu().to(at::kDouble);
    for (size_t d = 0; d < ranges.size(); ++d) {
      ranges[d] = {low.data_ptr<double>()[d], high.data_ptr<double>()[d]};
    }
  }
  for (Range& r : ranges) {
    TORCH_CHECK(std::isfinite(r.low) && std::isfinite(r.high), "torch.histogramdd(): range [",
                r.low, ", ", r.high, "] is not finite");
    TORCH_CHECK(r.low <= r.high, "torch.histogramdd(): min should not exceed max, but got min ",
                r.low, " max ", r.high);
    if (r.low == r.high) {
      r.low -= 0.5;
      r.high += 0.5;
    }
  }
  return ranges;
}

void BinEdges(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const std::vector<int64_t> bins = a[1].toIntVector();
  const bool fits = self.dim() >= 2 && static_cast<int64_t>(bins.size()) == self.size(-1) &&
                    at::isFloatingType(self.scalar_type());
  if (!fits) return RunOnHost(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const std::vector<Range> ranges = RangesOf(self, a[2]);
  std::vector<at::Tensor> edges;
  for (size_t d = 0; d < bins.size(); ++d) {
    edges.push_back(at::linspace(ranges[d].low, ranges[d].high, bins[d] + 1, self.options()));
  }
  stack->push_back(c10::IValue(std::move(edges)));
}

// The density of each bin: its share divided by its volume.
at::Tensor Density(at::Tensor counts, const std::vector<at::Tensor>& edges) {
  counts = counts.div(counts.sum());
  for (size_t d = 0; d < edges.size(); ++d) {
    std::vector<int64_t> along(edges.size(), 1);
    along[d] = -1;
    counts = counts.div(edges[d].diff().view(along));
  }
  return counts;
}

void FromBins(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  Args a = PeekArguments(op, stack);
  if (!a[3].toBool() || !state.shapes.Infer(op, a).ok) return RunGeneric(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, op.args.size());
  const std::vector<at::Tensor> edges = a[1].toTensorVector();
  stack->push_back(Density(
      at::_histogramdd_from_bin_tensors(a[0].toTensor(), edges, OptionalTensor(a[2]), false),
      edges));
}

void FromCounts(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const std::vector<at::Tensor> edges =
      at::_histogramdd_bin_edges(self, a[1].toIntVector(), a[2].toOptional<std::vector<double>>(),
                                 OptionalTensor(a[3]), a[4].toBool());
  stack->push_back(
      at::_histogramdd_from_bin_tensors(self, edges, OptionalTensor(a[3]), a[4].toBool()));
}

// The histogram of one column.
void PushHistogram(const at::Tensor& self, const at::Tensor& edges,
                   const std::optional<at::Tensor>& weight, bool density,
                   torch::jit::Stack* stack) {
  std::optional<at::Tensor> weights;
  if (weight.has_value() && weight->defined()) {
    TORCH_CHECK(weight->sizes() == self.sizes(),
                "torch.histogram(): if weight tensor is provided it should have the same shape as "
                "the input tensor, but got input of shape ",
                self.sizes(), " and weight of shape ", weight->sizes());
    weights = weight->reshape({-1});
  }
  stack->push_back(
      at::_histogramdd_from_bin_tensors(self.reshape({-1, 1}), {edges}, weights, density));
  stack->push_back(edges);
}

void HistogramOfCount(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const at::Tensor edges =
      at::_histogramdd_bin_edges(self.reshape({-1, 1}), {a[1].toInt()},
                                 a[2].toOptional<std::vector<double>>(), {}, a[4].toBool())[0];
  PushHistogram(self, edges, OptionalTensor(a[3]), a[4].toBool(), stack);
}

void HistogramOfBins(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  PushHistogram(a[0].toTensor(), a[1].toTensor().clone(), OptionalTensor(a[2]), a[3].toBool(),
                stack);
}

// The number of counts is that of the greatest element, which is waited for, as on CUDA.
void BinCount(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor self = a[0].toTensor();
  const std::optional<at::Tensor> weights = OptionalTensor(a[1]);
  int64_t bins = a[2].toInt();
  const bool weighted = weights.has_value() && weights->defined();
  if (self.dim() != 1 || self.numel() == 0 || bins < 0 ||
      !at::isIntegralType(self.scalar_type(), /*includeBool=*/false) ||
      (weighted && (weights->sizes() != self.sizes() || weights->is_complex()))) {
    return RunOnHost(state, op, stack);  // makes the empty result, or raises the error
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor places = self.to(at::kLong);
  const auto [low, high] = at::aminmax(places);
  const at::Tensor bounds = at::stack({low, high}).cpu();
  TORCH_CHECK(bounds.data_ptr<int64_t>()[0] >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  bins = std::max(bins, bounds.data_ptr<int64_t>()[1] + 1);
  torch::jit::drop(*stack, op.args.size());
  const auto counts = [&](at::ScalarType type) {
    return at::zeros({bins}, self.options().dtype(type));
  };
  if (!weighted) {
    stack->push_back(counts(at::kLong).index_add(0, places, at::ones_like(places)));
    return;
  }
  const at::ScalarType type = weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  stack->push_back(counts(type).index_add(0, places, weights->to(type)));
}

constexpr HandlerRow kHistogramHandlers[] = {
    {"aten::_histogramdd_bin_edges", &BinEdges},
    {"aten::_histogramdd_from_bin_cts", &FromCounts},
    {"aten::_histogramdd_from_bin_tensors", &FromBins},
    {"aten::bincount", &BinCount},
    {"aten::bincount.out", &RunIntoOut},
    {"aten::histc", &Histc},
    {"aten::histc.out", &RunIntoOut},
    {"aten::histogram.bin_ct", &HistogramOfCount},
    {"aten::histogram.bins_tensor", &HistogramOfBins},
};
static_assert(IsSortedAndUnique(kHistogramHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> HistogramHandlers() { return kHistogramHandlers; }

}  // namespace spmd::trace
