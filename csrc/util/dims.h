// SPDX-License-Identifier: Apache-2.0
// Sizes of tensors, and the integer arithmetic of dividing them into shards.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "csrc/util/checked_vector.h"

namespace spmd {

using Dims = CheckedVector<int64_t, 5>;

// As attributes hold them.
inline std::vector<int64_t> ToVector(const Dims& dims) { return {dims.begin(), dims.end()}; }

// ⌈a/b⌉ and ⌊a/b⌋ for any `a`. Both throw std::domain_error where `b` is not positive (a stride of
// 0, say).
constexpr int64_t CeilDiv(int64_t a, int64_t b) {
  if (b <= 0) throw std::domain_error("a divisor is not positive");
  return a / b + (a % b > 0 ? 1 : 0);
}
constexpr int64_t FloorDiv(int64_t a, int64_t b) {
  if (b <= 0) throw std::domain_error("a divisor is not positive");
  return a / b - (a % b < 0 ? 1 : 0);
}

// Number of elements; 1 for rank 0.
int64_t NumElements(absl::Span<const int64_t> dims);

// "[2,3]"; "[]" for rank 0.
std::string DimsToString(absl::Span<const int64_t> dims);

}  // namespace spmd
