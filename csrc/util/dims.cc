// SPDX-License-Identifier: Apache-2.0
#include "csrc/util/dims.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace spmd {

int64_t NumElements(absl::Span<const int64_t> dims) {
  int64_t n = 1;
  for (int64_t d : dims) n = CheckedMul(n, d);
  return n;
}

std::string DimsToString(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ","), "]");
}

}  // namespace spmd
