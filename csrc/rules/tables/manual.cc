// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/manual.h"

#include <algorithm>

#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {

absl::StatusOr<OpFactors> RegionFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims &from = call.operand(0).dims, &to = call.results[0].dims;
  for (int d = 0; d < static_cast<int>(std::max(from.size(), to.size())); ++d) {
    const int64_t own = std::min(from[d], to[d]), whole = std::max(from[d], to[d]);
    if (own == 0) continue;
    SPMD_REQUIRE(whole % own == 0, "parts of ", own, " do not make ", whole);
    if (whole != own) {
      const int parts = f.AddWhole(whole / own);
      if (from[d] > to[d]) {
        f.OverOperand(0, d, parts);
      } else {
        f.OverResult(d, parts);
      }
    }
    if (own == 1) continue;
    const int factor = f.Add(own);
    f.OverOperand(0, d, factor);
    f.OverResult(d, factor);
  }
  OpFactors factors = f.Take();
  factors.same = {true};
  return factors;
}

absl::StatusOr<std::vector<TensorType>> RegionTypes(const OpCall& call) {
  const std::vector<int64_t>& size = call.attrs().GetInts("size");
  return std::vector<TensorType>{{call.operand(0).dtype, Dims(size.begin(), size.end())}};
}

}  // namespace spmd::rules
