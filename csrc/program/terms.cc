// SPDX-License-Identifier: Apache-2.0
#include "csrc/program/terms.h"

namespace spmd::program {

DType Widened(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return DType::kF32;
    case DType::kC32:
      return DType::kC64;
    default:
      return dtype;
  }
}

DType HeldType(DType dtype, const Sharding& sharding) {
  const bool rounds =
      sharding.reduce_kind == ReduceKind::kSum || sharding.reduce_kind == ReduceKind::kProd;
  return sharding.IsUnreduced() && rounds ? Widened(dtype) : dtype;
}

}  // namespace spmd::program
