// SPDX-License-Identifier: Apache-2.0
// Sizes of tensors and the integer arithmetic of cutting them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace spmd {

using Dims = absl::InlinedVector<int64_t, 5>;

// ⌈a/b⌉ and ⌊a/b⌋ for b > 0 and any a.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }
constexpr int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Number of elements; 1 for rank 0.
int64_t NumElements(absl::Span<const int64_t> dims);

// "[2,3]"; "[]" for rank 0.
std::string DimsToString(absl::Span<const int64_t> dims);

}  // namespace spmd
