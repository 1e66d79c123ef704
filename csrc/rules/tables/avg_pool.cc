// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/avg_pool.h"

#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/resample.h"
#include "csrc/rules/tables/sliding.h"

namespace spmd::rules {
namespace {

using ir::ValueId;

// True if every window's mean has the same divisor: all elements are inside, or those outside
// count.
bool HasOneDivisor(const OpCall& call, const Sliding& pool, int64_t input, int64_t output) {
  if (output != pool.OutputSize(input))
    return false;  // ceil_mode has a window that reaches outside
  return pool.padding == 0 || call.attrs().GetBoolOr("count_include_pad", true) ||
         !call.attrs().IsNone("divisor_override");
}

bool HasOneDivisor(const OpCall& call, const Dims& input, const Dims& output, int rank) {
  const int leading = static_cast<int>(input.size()) - rank;
  for (int i = 0; i < rank; ++i) {
    if (!HasOneDivisor(call, PoolOf(call, i), input[leading + i], output[leading + i])) {
      return false;
    }
  }
  return true;
}

// True if each mean is over the elements inside its window only, so that the means can be taken one
// dimension after the other.
bool CountsInside(const OpCall& call, int rank) {
  if (!call.attrs().IsNone("divisor_override")) return false;
  for (int i = 0; i < rank; ++i) {
    if (PoolOf(call, i).padding > 0 && call.attrs().GetBoolOr("count_include_pad", true)) {
      return false;
    }
  }
  return !IsIntegral(call.operand(0).dtype, /*include_bool=*/true);
}

// Takes means along one spatial dimension after the other, in single precision for half types.
// `range_of` gives the inputs that each output is the mean of.
template <typename RangeOf>
std::vector<ValueId> MeansByDimension(Builder& b, ValueId x, const Dims& in, const Dims& out,
                                      int rank, bool backward, RangeOf range_of) {
  const DType dtype = b.type(x).dtype;
  x = Upcast(b, x);
  const int leading = static_cast<int>(in.size()) - rank;
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    Resampling r = range_of(i, in[d], out[d]);
    r.filter = "mean";
    r.num_in = in[d];
    r.num_out = out[d];
    x = backward ? ResampleDInput(b, x, d, r) : Resample(b, x, d, r);
  }
  return {b.Cast(x, dtype)};
}

std::vector<ValueId> PoolByDimension(Builder& b, const OpCall& call, ValueId x, const Dims& in,
                                     const Dims& out, int rank, bool backward) {
  if (!CountsInside(call, rank)) return {};
  return MeansByDimension(b, x, in, out, rank, backward, [&](int i, int64_t, int64_t) {
    const Sliding pool = PoolOf(call, i);
    return Resampling{
        .step = pool.stride, .start = -pool.padding, .stop = pool.kernel - pool.padding};
  });
}

// Output o of `out` is the mean of inputs [⌊o·in/out⌋, ⌈(o+1)·in/out⌉).
std::vector<ValueId> AdaptiveByDimension(Builder& b, const OpCall& call, ValueId x, const Dims& in,
                                         const Dims& out, int rank, bool backward) {
  if (IsIntegral(call.operand(0).dtype, /*include_bool=*/true)) return {};
  return MeansByDimension(b, x, in, out, rank, backward, [](int, int64_t from, int64_t to) {
    return Resampling{.step = from, .start = 0, .stop = from + to - 1, .unit = to};
  });
}

// A factor that is a dimension of one tensor and the major part of (coarse window) in the others.
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
  const bool one_divisor = HasOneDivisor(call, call.results[0].dims, call.operand(0).dims, rank);
  // Not even the decomposition could shard these dimensions.
  if (!one_divisor && !CountsInside(call, rank)) return f.Take();
  for (int i = 0; i < rank; ++i) {
    const int d = leading + i;
    const int64_t in = call.results[0].dims[d], out = call.operand(0).dims[d];
    const Sliding pool = PoolOf(call, i);
    if (one_divisor && pool.Tiles(in)) {
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

absl::StatusOr<std::vector<ValueId>> AvgPoolByDimension(Builder& b, const OpCall& call,
                                                        Operands operands, int rank) {
  return PoolByDimension(b, call, operands[0], call.operand(0).dims, call.results[0].dims, rank,
                         /*backward=*/false);
}

absl::StatusOr<std::vector<ValueId>> AvgPoolBackwardInCoreOps(Builder& b, const OpCall& call,
                                                              Operands operands, int rank) {
  if (!HasOneDivisor(call, call.results[0].dims, call.operand(0).dims, rank)) {
    return PoolByDimension(b, call, operands[0], call.results[0].dims, call.operand(0).dims, rank,
                           /*backward=*/true);
  }
  const Attributes lists = PoolLists(call, rank);
  int64_t divisor = 1;
  for (int64_t k : lists.GetInts("kernel_size")) divisor = CheckedMul(divisor, k);
  const Attr* const given = call.attrs().Find("divisor_override");
  const bool at_run_time = given != nullptr && std::holds_alternative<RuntimeScalar>(*given);
  divisor = at_run_time ? 1 : call.attrs().GetIntOr("divisor_override", divisor);

  // Each channel is a group of its own. Without a batch dimension one of size 1 is inserted.
  const Dims dims = b.type(operands[1]).dims;
  const bool batched = b.rank(operands[1]) == rank + 2;
  auto with_batch = [rank](Dims d) {
    if (static_cast<int>(d.size()) == rank + 1) d.insert(d.begin(), 1);
    return ToVector(d);
  };
  const DType dtype = b.type(operands[0]).dtype;
  ValueId wide = Upcast(b, operands[0]);
  if (at_run_time) wide = b.DivScalar(wide, *given);
  const ValueId grad = batched ? wide : b.View(wide, with_batch(b.type(wide).dims));
  std::vector<int64_t> input_size = with_batch(dims);
  std::vector<int64_t> weight_size = {input_size[1], 1};
  for (int64_t k : lists.GetInts("kernel_size")) weight_size.push_back(k);
  const ValueId weight = b.Call("spmd::full", {},
                                {{"size", std::move(weight_size)},
                                 {"value", 1.0 / static_cast<double>(divisor)},
                                 {"dtype", b.type(grad).dtype}});
  const ValueId sums = b.Call("spmd::conv_dinput", {grad, weight},
                              {{"input_size", input_size},
                               {"stride", lists.GetInts("stride")},
                               {"padding", lists.GetInts("padding")},
                               {"dilation", lists.GetInts("dilation")},
                               {"groups", input_size[1]},
                               {"crop_start", std::vector<int64_t>(rank, 0)}});
  const ValueId dx = b.Cast(sums, dtype);
  return std::vector<ValueId>{batched ? dx : b.View(dx, ToVector(dims))};
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

absl::StatusOr<std::vector<ValueId>> AdaptiveAvgPoolByDimension(Builder& b, const OpCall& call,
                                                                Operands operands, int rank) {
  return AdaptiveByDimension(b, call, operands[0], call.operand(0).dims, call.results[0].dims, rank,
                             /*backward=*/false);
}

absl::StatusOr<std::vector<ValueId>> AdaptiveAvgPoolBackwardByDimension(Builder& b,
                                                                        const OpCall& call,
                                                                        Operands operands,
                                                                        int rank) {
  return AdaptiveByDimension(b, call, operands[0], call.results[0].dims, call.operand(0).dims, rank,
                             /*backward=*/true);
}

}  // namespace spmd::rules
