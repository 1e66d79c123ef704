// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention as the graph writes it: query [b,h,s,d], key [b,hk,t,d], value
// [b,hk,t,e], where h = hk·g heads share hk keys and values.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

// The factors b, hk and g pass. s passes unless attention is causal, where the mask of a row
// depends on its global index. t, d and e are whole.
absl::StatusOr<OpFactors> AttentionFactors(const OpCall& call);
// The same for the gradients. dk and dv lack g and s, so that shards of these compute partial sums.
absl::StatusOr<OpFactors> AttentionBackwardFactors(const OpCall& call);

absl::StatusOr<std::vector<TensorType>> AttentionTypes(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> AttentionBackwardTypes(const OpCall& call);

}  // namespace spmd::rules
