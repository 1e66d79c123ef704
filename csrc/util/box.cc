// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/box.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace spmd {

Box WholeBox(absl::Span<const int64_t> dims) {
  Box box;
  for (int64_t n : dims) box.push_back({0, n});
  return box;
}

Interval Intersect(const Interval& a, const Interval& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Box Intersect(const Box& a, const Box& b) {
  Box box;
  for (size_t d = 0; d < a.size(); ++d) box.push_back(Intersect(a[d], b[d]));
  return box;
}

bool IsEmpty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Interval& i) { return i.empty(); });
}

bool Contains(const Box& outer, const Box& inner) {
  if (IsEmpty(inner)) return true;
  for (size_t d = 0; d < outer.size(); ++d) {
    if (!outer[d].Contains(inner[d])) return false;
  }
  return true;
}

int64_t NumElements(const Box& box) {
  int64_t n = 1;
  for (const Interval& i : box) n *= i.size();
  return n;
}

Dims BoxDims(const Box& box) {
  Dims dims;
  for (const Interval& i : box) dims.push_back(i.size());
  return dims;
}

std::string BoxToString(const Box& box) {
  return absl::StrCat("[",
                      absl::StrJoin(box, ", ",
                                    [](std::string* out, const Interval& i) {
                                      absl::StrAppend(out, i.begin, ":", i.end);
                                    }),
                      "]");
}

}  // namespace spmd
