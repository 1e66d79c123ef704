// SPDX-License-Identifier: Apache-2.0
// The borders of manual regions (csrc/ir/border.h), seen as ops on one device's part:
//
//   spmd::to_local   [8,4] -> [2,4]      factors (n a) b -> a b, with n whole: the devices' parts
//   spmd::to_global  [2,4] -> [8,4]      factors a b -> (n a) b
//
// Which axes shard n, the attributes say (partition::PlanNode).
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

absl::StatusOr<OpFactors> RegionFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> RegionTypes(const OpCall& call);

}  // namespace spmd::rules
