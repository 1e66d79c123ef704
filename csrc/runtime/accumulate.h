// SPDX-License-Identifier: Apache-2.0
// Combines the partial results of an unreduced value.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/type.h"
#include "csrc/runtime/backend.h"
#include "csrc/sharding/sharding.h"

namespace spmd::runtime {

// Sets target = target ∘ term.
void AccumulateInto(ReduceKind kind, const at::Tensor& term, at::Tensor& target);

// Sets target = terms[0] ∘ terms[1] ∘ …, left to right in each element. `target` may be terms[0]
// itself and must not overlap the others. Half types are summed in f32 and rounded once.
// Requires: `terms` is not empty; all its tensors have the shape, type and device of `target`.
void AccumulateTerms(ReduceKind kind, const std::vector<at::Tensor>& terms, at::Tensor& target);

// The same for rows of `n` elements on the host, which lie wherever they are: each of `targets`
// gets terms[0] ∘ terms[1] ∘ …. No target overlaps a term.
void AccumulateRows(ReduceKind kind, at::ScalarType type, absl::Span<const void* const> terms,
                    int64_t n, absl::Span<void* const> targets);

// The identity of a reduction as a tensor of `dims` that takes the memory of one element.
at::Tensor IdentityTile(const Backend& backend, const Place& place, ReduceKind kind, DType dtype,
                        const Dims& dims);

}  // namespace spmd::runtime
