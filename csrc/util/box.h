// SPDX-License-Identifier: Apache-2.0
// Half-open integer intervals and boxes: the language in which "who holds what" is answered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "csrc/util/dims.h"

namespace spmd {

// The half-open interval [begin, end). It is empty when end <= begin; operator== compares the
// bounds, so two empty intervals may differ.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  // Of an interval of more than 2^63 - 1 integers, that number.
  int64_t size() const {
    int64_t n = 0;
    if (empty()) return 0;
    return __builtin_sub_overflow(end, begin, &n) ? std::numeric_limits<int64_t>::max() : n;
  }
  bool empty() const { return end <= begin; }
  bool HasPositions() const { return IsPosition(begin) && IsPosition(end); }
  bool Contains(const Interval& other) const {
    return other.empty() || (begin <= other.begin && other.end <= end);
  }
  friend bool operator==(const Interval& a, const Interval& b) {
    return a.begin == b.begin && a.end == b.end;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Interval& i) {
    return H::combine(std::move(h), i.begin, i.end);
  }
};

// One interval per dimension. A box of rank 0 holds one element.
using Box = absl::InlinedVector<Interval, 5>;

// The box [0, n) in each dimension.
Box WholeBox(absl::Span<const int64_t> dims);
Interval Intersect(const Interval& a, const Interval& b);
Box Intersect(const Box& a, const Box& b);
bool IsEmpty(const Box& box);
bool Contains(const Box& outer, const Box& inner);
int64_t NumElements(const Box& box);
Dims BoxDims(const Box& box);
// "[0:4, 8:16]".
std::string BoxToString(const Box& box);

}  // namespace spmd
