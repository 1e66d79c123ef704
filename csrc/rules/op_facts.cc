// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/op_facts.h"

namespace spmd::rules {

bool MayFail(const OpFacts& facts, DType result) {
  switch (facts.fails) {
    case Failure::kNever:
      return false;
    case Failure::kOnIntegers:
      return IsIntegral(result, /*include_bool=*/true);
    case Failure::kOnIndices:
    case Failure::kOnValues:
      break;
  }
  return true;
}

}  // namespace spmd::rules
