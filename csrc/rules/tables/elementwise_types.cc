// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/elementwise_types.h"

#include <utility>

#include "csrc/rules/promotion.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

TypesOrStatus Broadcast(const OpCall& call, DType dtype) {
  SPMD_ASSIGN_OR_RETURN(Dims dims, BroadcastDims(call));
  return std::vector<TensorType>{{dtype, std::move(dims)}};
}

}  // namespace

TypesOrStatus FloatTypes(const OpCall& call) {
  const DType t = PromotedDType(call);
  return Broadcast(call, IsIntegral(t, /*include_bool=*/true) ? DType::kF32 : t);
}

TypesOrStatus BoolTypes(const OpCall& call) { return Broadcast(call, DType::kBool); }

TypesOrStatus FirstTypes(const OpCall& call) { return Broadcast(call, call.operand(0).dtype); }

TypesOrStatus RealTypes(const OpCall& call) {
  return Broadcast(call, RealOf(call.operand(0).dtype));
}

TypesOrStatus AngleTypes(const OpCall& call) {
  const DType t = call.operand(0).dtype;
  return Broadcast(call, IsIntegral(t, /*include_bool=*/true) ? DType::kF32 : RealOf(t));
}

TypesOrStatus WhereTypes(const OpCall& call) {
  OpCall values = call;
  values.operands.erase(values.operands.begin());
  return Broadcast(call, PromotedDType(values));
}

TypesOrStatus CastTypes(const OpCall& call) {
  const Attr* dtype = call.attrs().Find("dtype");
  const bool given = dtype != nullptr && std::holds_alternative<DType>(*dtype);
  return Broadcast(call, given ? std::get<DType>(*dtype) : call.operand(0).dtype);
}

TypesOrStatus ComplexTypes(const OpCall& call) {
  const DType t = PromotedDType(call);
  return Broadcast(call, t == DType::kF16   ? DType::kC32
                         : t == DType::kF64 ? DType::kC128
                                            : DType::kC64);
}

}  // namespace spmd::rules
