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

// A tensor has no more elements than these, so that byte counts and sums of them fit in an int64_t.
constexpr int64_t kMaxElements = int64_t{1} << 48;
// Whether `i` may be an index of a tensor, or one that lies outside of it by no more than the
// largest tensor has elements. Sums of a few of these have room in an int64_t.
constexpr bool IsPosition(int64_t i) { return i >= -kMaxElements && i <= kMaxElements; }

// a + b, a - b and a · b of numbers that anybody may have written, as in an attribute. All throw
// std::domain_error where the result has no room in an int64_t.
constexpr int64_t CheckedAdd(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) throw std::domain_error("a number is too large");
  return result;
}
constexpr int64_t CheckedSub(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_sub_overflow(a, b, &result)) throw std::domain_error("a number is too large");
  return result;
}
constexpr int64_t CheckedMul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) throw std::domain_error("a number is too large");
  return result;
}

// Number of elements; 1 for rank 0. Throws std::domain_error where it has no room in an int64_t,
// which sizes of tensors never do.
int64_t NumElements(absl::Span<const int64_t> dims);

// "[2,3]"; "[]" for rank 0.
std::string DimsToString(absl::Span<const int64_t> dims);

}  // namespace spmd
