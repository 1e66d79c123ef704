// SPDX-License-Identifier: Apache-2.0
// Ops that read images through coordinates or patches. Batch, channels and the positions that are
// read pass; the image is whole.
#include "csrc/rules/families.h"
#include "csrc/rules/tables/columns.h"

namespace spmd::rules {
namespace {

constexpr auto kSamplingRows = Rows(
    Einsum("aten::col2im", "... (c [k]) [l] -> ... c [h] [w]")
        .Jointly({0})
        .Decomposes(Col2ImByPosition)
        .CannotFail(),
    Einsum("aten::fractional_max_pool2d", "... [h] [w], ... [d] -> ... [p] [q], ... [p] [q]"),
    Einsum("aten::fractional_max_pool2d_backward",
           "... [p] [q], ... [h] [w], ... [p] [q] -> ... [h] [w]")
        .Jointly({0}),
    Einsum("aten::fractional_max_pool3d",
           "... [t] [h] [w], ... [d] -> ... [o] [p] [q], ... [o] [p] [q]"),
    Einsum("aten::fractional_max_pool3d_backward",
           "... [o] [p] [q], ... [t] [h] [w], ... [o] [p] [q] -> ... [t] [h] [w]")
        .Jointly({0}),
    Einsum("aten::grid_sampler_2d", "n c [h] [w], n p q [d] -> n c p q").Jointly({0}).CannotFail(),
    Einsum("aten::grid_sampler_2d_backward",
           "n c p q, n c [h] [w], n p q [d] -> n c [h] [w]?, n p q [d]?")
        .Jointly({0})
        .CannotFail(),
    Einsum("aten::grid_sampler_3d", "n c [t] [h] [w], n o p q [d] -> n c o p q")
        .Jointly({0})
        .CannotFail(),
    Einsum("aten::grid_sampler_3d_backward",
           "n c o p q, n c [t] [h] [w], n o p q [d] -> n c [t] [h] [w]?, n o p q [d]?")
        .Jointly({0})
        .CannotFail(),
    Einsum("aten::im2col", "... c [h] [w] -> ... (c [k]) [l]")
        .Jointly({0})
        .Decomposes(Im2ColByPosition)
        .CannotFail(),
    Einsum("aten::max_unpool2d", "... [h] [w], ... [h] [w] -> ... [p] [q]").Jointly({0}),
    Einsum("aten::max_unpool3d", "... [t] [h] [w], ... [t] [h] [w] -> ... [o] [p] [q]")
        .Jointly({0}));
static_assert(AreRowsOf(Family::kSampling, kSamplingRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> SamplingRows() { return kSamplingRows; }

}  // namespace spmd::rules
