// SPDX-License-Identifier: Apache-2.0
// Ops that read images through coordinates or patches. Batch, channels and the positions that are
// read pass; the image is whole.
#include <utility>

#include "csrc/rules/families.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/columns.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

// A grid of two or three dimensions for each map. The kernel numbers the positions of the whole
// grid, so only its decomposition shards them.
absl::StatusOr<OpFactors> AffineGridFactors(const OpCall& call) {
  const bool flat = call.attrs().GetInts("size").size() == 4;
  return FactorsByText(call,
                       flat ? "n [r] [c] -> n [h] [w] [r]" : "n [r] [c] -> n [d] [h] [w] [r]");
}

Attributes LocalAffineGrid(const OpCall& call, const OpFactors& factors, const CutFactors& cut) {
  Attributes local = call.attrs();
  if (!IsCut(factors.operands[0][0], cut)) return local;
  const std::vector<int64_t>& given = call.attrs().GetInts("size");
  std::vector<Expr> size(given.begin(), given.end());
  size[0] = Expr::Size(Result(0), 0);
  local.Set("size", ToAttr(size));
  return local;
}

constexpr auto kSamplingRows = Rows(
    Computed("aten::affine_grid_generator", AffineGridFactors)
        .Jointly({0})
        .Local(LocalAffineGrid)
        .Decomposes(DecomposeAffineGrid)
        .CannotFail(),
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

// A position's coordinates in [-1, 1], times the map: x belongs to the last dimension.
ValuesOrStatus DecomposeAffineGrid(Builder& b, const ir::Graph& from, const ir::Node& node,
                                   Operands operands) {
  const std::vector<int64_t>& size = node.attributes.GetInts("size");
  const bool corners = node.attributes.GetBoolOr("align_corners", false);
  const ir::ValueId map = Upcast(b, operands[0]);
  const DType dtype = b.type(map).dtype;
  const int places = static_cast<int>(size.size()) - 2;
  const auto column = [&](int64_t j) {
    std::vector<int64_t> dims(places + 2, 1);
    dims.front() = size[0];
    dims.back() = places;
    return b.View(b.Slice(map, 2, j, j + 1), std::move(dims));
  };
  ir::ValueId grid = column(places);
  for (int j = 0; j < places; ++j) {
    const int dim = places - j;
    const auto n = static_cast<double>(size[dim + 1]);
    ir::ValueId at = b.Cast(b.Iota(size[dim + 1], dim, places + 2), dtype);
    if (corners) {
      at = n > 1 ? b.AddScalar(b.MulScalar(at, 2 / (n - 1)), -1) : b.MulScalar(at, 0);
    } else {
      at = b.AddScalar(b.MulScalar(b.AddScalar(at, 0.5), 2 / n), -1);
    }
    grid = b.Add(b.Mul(column(j), at), grid);
  }
  return AsResultsOf(b, from, node, {grid});
}

}  // namespace spmd::rules
