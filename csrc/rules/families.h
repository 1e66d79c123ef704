// SPDX-License-Identifier: Apache-2.0
// The families of ops, one table of rows each, and the schemas of all ops that have a row. That no
// op has two rows, in one table or in two, is a matter of compiling: kSchemas has each op once,
// with its family, and each table asserts that it has the ops of its family, each once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "csrc/rules/row.h"
#include "csrc/util/sorted.h"

namespace spmd::rules {

enum class Family : uint8_t {
  kElementwise,
  kMatmul,         // mm bmm addmm linear, their backward, attention
  kReduction,      // sum mean amax argmax norm softmax …
  kNormalization,  // of batches, groups, layers
  kLoss,           // mse, binary cross entropy … and their gradients
  kView,           // view permute slice select cat stack expand pad …
  kIndexing,       // embedding gather scatter index nll …
  kPart,           // the same along a sharded dimension
  kLinearAlgebra,  // batches of matrices, Fourier transforms
  kSampling,       // grid_sample, unfold, unpooling: images through coordinates
  kConvolution,    // convolution, pooling, up-sampling and their gradients
  kCreation,       // full arange random …
  kOptimizer,      // what foreach and fused optimizers split into
};

// The rows, each family's defined in tables/<family>.cc.
absl::Span<const Row> ElementwiseRows();
absl::Span<const Row> MatmulRows();
absl::Span<const Row> ReductionRows();
absl::Span<const Row> NormalizationRows();
absl::Span<const Row> LossRows();
absl::Span<const Row> ViewRows();
absl::Span<const Row> IndexingRows();
absl::Span<const Row> PartRows();
absl::Span<const Row> LinearAlgebraRows();
absl::Span<const Row> SamplingRows();
absl::Span<const Row> ConvolutionRows();
absl::Span<const Row> CreationRows();
absl::Span<const Row> OptimizerRows();

struct Schema {
  Family family;
  const char* text;  // as PyTorch prints it

  constexpr std::string_view op() const {
    const std::string_view all = text;
    return all.substr(0, all.find('('));
  }
};

inline constexpr Schema kSchemas[] = {
#include "csrc/rules/signatures.inc"
};
static_assert(IsSortedAndUnique(kSchemas, &Schema::op));

// Where kSchemas has `op`, or its size if it does not. (An index: GCC with -fsanitize=undefined
// takes no comparison of an address with null for a constant.)
constexpr size_t FindSchema(std::string_view op) {
  const auto at = std::ranges::lower_bound(kSchemas, op, {}, &Schema::op);
  const bool found = at != std::end(kSchemas) && at->op() == op;
  return found ? at - std::begin(kSchemas) : std::size(kSchemas);
}

// Whether `rows` has a row for each op that kSchemas lists under `family`, and no other.
template <size_t n>
constexpr bool AreRowsOf(Family family, const std::array<Row, n>& rows) {
  std::array<bool, std::size(kSchemas)> seen{};
  for (const Row& row : rows) {
    const size_t at = FindSchema({row.op.data(), row.op.size()});
    if (at == std::size(kSchemas) || kSchemas[at].family != family || seen[at]) return false;
    seen[at] = true;
  }
  return std::ranges::count(kSchemas, family, &Schema::family) == n;
}

}  // namespace spmd::rules
