// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/border.h"

#include <optional>
#include <string>

#include "csrc/rules/registry.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/rules/tables/resample.h"

namespace spmd::rules {
namespace {

struct Border {
  int dim;
  int64_t before, after;
};

// The padding of each padded dimension. "padding" lists the last dimension first.
std::vector<Border> BordersOf(const OpCall& call) {
  const std::vector<int64_t>& padding = call.attrs().GetInts("padding");
  std::vector<Border> borders;
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    const Border border{call.operand(0).rank() - 1 - static_cast<int>(i), padding[2 * i],
                        padding[2 * i + 1]};
    if (border.before != 0 || border.after != 0) borders.push_back(border);
  }
  return borders;
}

std::optional<Resampling> ResamplingOf(const OpCall& call, const Border& border, int64_t size) {
  if (border.before < 0 || border.after < 0) return std::nullopt;
  Resampling r;
  r.filter = std::string(FactsOf(call.op).filter);
  r.start = -border.before;
  r.stop = r.start + 1;
  r.num_in = size;
  r.num_out = CheckedAdd(CheckedAdd(size, border.before), border.after);
  return r;
}

}  // namespace

absl::StatusOr<OpFactors> BorderFactors(const OpCall& call) {
  std::vector<bool> whole(call.operand(0).rank(), false);
  for (const Border& border : BordersOf(call)) whole[border.dim] = true;
  CallFactors f(call);
  for (int d = 0; d < call.operand(0).rank(); ++d) {
    if (!whole[d]) {
      const int factor = f.Pass(d, d);
      if (call.has(1)) f.OverOperand(1, d, factor);
      continue;
    }
    f.OverOperand(0, d, f.AddWhole(call.operand(0).dims[d]));
    f.OverResult(d, f.AddWhole(call.results[0].dims[d]));
    if (call.has(1)) f.OverOperand(1, d, f.AddWhole(call.operand(1).dims[d]));
  }
  return f.Take();
}

ValuesOrStatus BorderByDimension(Builder& b, const ir::Graph& from, const ir::Node& node,
                                 Operands operands) {
  const OpCall call = OpCall::Of(from, node);
  ir::ValueId x = operands[0];
  for (const Border& border : BordersOf(call)) {
    const auto r = ResamplingOf(call, border, call.operand(0).dims[border.dim]);
    if (!r) return Values{};
    x = Resample(b, x, border.dim, *r);
  }
  return Values{x};
}

ValuesOrStatus BorderBackwardByDimension(Builder& b, const ir::Graph& from, const ir::Node& node,
                                         Operands operands) {
  const OpCall call = OpCall::Of(from, node);
  ir::ValueId grad = Upcast(b, operands[0]);
  for (const Border& border : BordersOf(call)) {
    const auto r = ResamplingOf(call, border, call.results[0].dims[border.dim]);
    if (!r) return Values{};
    grad = ResampleDInput(b, grad, border.dim, *r);
  }
  return AsResultsOf(b, from, node, {grad});
}

}  // namespace spmd::rules
