// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/avg_pool.h"

#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/sliding.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

// Every window's mean is over the same number of elements, all of them inside or counted.
bool HasOneDivisor(const OpCall& call, const Sliding& pool, int64_t input, int64_t output) {
  if (output != pool.OutputSize(input))
    return false;  // ceil_mode has a window that reaches outside
  return pool.padding == 0 || call.attrs().GetBoolOr("count_include_pad", true) ||
         !call.attrs().IsNone("divisor_override");
}

std::vector<int64_t> Ints(const Dims& dims) { return {dims.begin(), dims.end()}; }

// `coarse` dimension d of one tensor and (coarse window) of others.
struct Grouped {
  int coarse;
  int window;
  Grouped(CallFactors& f, int64_t size, int64_t window_size)
      : coarse(f.Add(size)), window(f.AddWhole(window_size)) {}
  void OverOperand(CallFactors& f, int k, int d) const {
    f.OverOperand(k, d, coarse);
    f.OverOperand(k, d, window);
  }
  void OverResult(CallFactors& f, int d) const {
    f.OverResult(d, coarse);
    f.OverResult(d, window);
  }
};

}  // namespace

absl::StatusOr<OpFactors> AvgPoolFactors(const OpCall& call, int rank) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int64_t in = call.operand(0).dims[d], out = call.results[0].dims[d];
    const Sliding pool = PoolOf(call, i);
    if (HasOneDivisor(call, pool, in, out)) {
      const int factor = f.Add(out);
      f.OverResult(d, factor);
      f.OverWindow(0, d, factor, pool.InputsOf(WindowShard()));
    } else {
      f.OverOperand(0, d, f.AddWhole(in));
      f.OverResult(d, f.AddWhole(out));
    }
  }
  return f.Take();
}

Attributes LocalAvgPool(const OpCall& call, const OpFactors& factors, const CutFactors& cut,
                        int rank) {
  Attributes local = call.attrs();
  local.Set("padding", LocalPadding(call, factors, cut, 0, rank));
  return local;
}

absl::StatusOr<OpFactors> AvgPoolBackwardFactors(const OpCall& call, int rank) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    // Without one divisor not even the decomposition could be cut.
    if (!HasOneDivisor(call, PoolOf(call, i), call.results[0].dims[d], call.operand(0).dims[d])) {
      return f.Take();
    }
  }
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int64_t in = call.results[0].dims[d], out = call.operand(0).dims[d];
    const Sliding pool = PoolOf(call, i);
    if (pool.Tiles(in)) {
      const Grouped dim(f, out, pool.kernel);
      f.OverOperand(0, d, dim.coarse);
      dim.OverOperand(f, 1, d);
      dim.OverResult(f, d);
    } else {
      f.OverOperand(0, d, f.AddWhole(out));
      const int factor = f.AddWhole(in);
      f.OverOperand(1, d, factor);
      f.OverResult(d, factor);
    }
  }
  return f.Take();
}

absl::StatusOr<std::vector<ValueId>> AvgPoolBackwardAsConvolution(
    Builder& b, const OpCall& call, absl::Span<const ValueId> operands, int rank) {
  const Attributes lists = PoolLists(call, rank);
  int64_t divisor = 1;
  for (int64_t k : lists.GetInts("kernel_size")) divisor *= k;
  divisor = call.attrs().GetIntOr("divisor_override", divisor);

  // Each channel is a group of its own; without a batch the channels are one.
  const Dims dims = b.type(operands[1]).dims;
  const bool batched = b.rank(operands[1]) == rank + 2;
  auto with_batch = [rank](Dims d) {
    if (static_cast<int>(d.size()) == rank + 1) d.insert(d.begin(), 1);
    return Ints(d);
  };
  const ValueId grad =
      batched ? operands[0] : b.View(operands[0], with_batch(b.type(operands[0]).dims));
  std::vector<int64_t> input_size = with_batch(dims);
  std::vector<int64_t> weight_size = {input_size[1], 1};
  for (int64_t k : lists.GetInts("kernel_size")) weight_size.push_back(k);
  const ValueId weight = b.Call("spmd::full", {},
                                {{"size", std::move(weight_size)},
                                 {"value", 1.0 / static_cast<double>(divisor)},
                                 {"dtype", b.type(grad).dtype}});
  const ValueId dx = b.Call("spmd::conv_dinput", {grad, weight},
                            {{"input_size", input_size},
                             {"stride", lists.GetInts("stride")},
                             {"padding", lists.GetInts("padding")},
                             {"dilation", lists.GetInts("dilation")},
                             {"groups", input_size[1]},
                             {"crop_start", std::vector<int64_t>(rank, 0)}});
  return std::vector<ValueId>{batched ? dx : b.View(dx, Ints(dims))};
}

absl::StatusOr<OpFactors> AdaptiveAvgPoolFactors(const OpCall& call, int rank) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int d = leading; d < leading + rank; ++d) {
    const int64_t in = call.operand(0).dims[d], out = call.results[0].dims[d];
    if (out > 0 && in % out == 0) {
      const Grouped dim(f, out, in / out);
      dim.OverOperand(f, 0, d);
      f.OverResult(d, dim.coarse);
    } else {
      f.OverOperand(0, d, f.AddWhole(in));
      f.OverResult(d, f.AddWhole(out));
    }
  }
  return f.Take();
}

absl::StatusOr<OpFactors> AdaptiveAvgPoolBackwardFactors(const OpCall& call, int rank) {
  CallFactors f(call);
  const int leading = PassLeading(f, call, rank);
  for (int d = leading; d < leading + rank; ++d) {
    const int64_t in = call.results[0].dims[d], out = call.operand(0).dims[d];
    if (out > 0 && in % out == 0) {
      const Grouped dim(f, out, in / out);
      f.OverOperand(0, d, dim.coarse);
      dim.OverOperand(f, 1, d);
      dim.OverResult(f, d);
    } else {
      f.OverOperand(0, d, f.AddWhole(out));
      const int factor = f.AddWhole(in);
      f.OverOperand(1, d, factor);
      f.OverResult(d, factor);
    }
  }
  return f.Take();
}

}  // namespace spmd::rules
