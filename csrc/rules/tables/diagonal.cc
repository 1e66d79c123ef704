// SPDX-License-Identifier: Apache-2.0
// Diagonals of a sharded matrix. A mask marks the diagonal, so that every device selects its part
// from the elements that it holds.
#include <algorithm>
#include <utility>

#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

using Sizes = std::vector<int64_t>;

// Entry k of the diagonal is at row `row + k` of dim1 and column `column + k` of dim2.
struct Diagonal {
  Diagonal(const Attributes& attrs, const Dims& dims)
      : rank(static_cast<int>(dims.size())),
        dim1(Wrap(attrs.GetIntOr("dim1", 0))),
        dim2(Wrap(attrs.GetIntOr("dim2", 1))),
        row(std::max<int64_t>(CheckedSub(0, attrs.GetIntOr("offset", 0)), 0)),
        column(std::max<int64_t>(attrs.GetIntOr("offset", 0), 0)),
        rows(dims[dim1]),
        length(std::max<int64_t>(std::min(dims[dim1] - row, dims[dim2] - column), 0)),
        columns(dims[dim2]) {}

  int Wrap(int64_t dim) const { return static_cast<int>(dim < 0 ? dim + rank : dim); }

  ir::ValueId Mask(Builder& b) const {
    const ir::ValueId down = b.AddScalar(b.Iota(rows, dim1, rank), static_cast<double>(-row));
    const ir::ValueId across =
        b.AddScalar(b.Iota(columns, dim2, rank), static_cast<double>(-column));
    return b.Call("aten::eq.Tensor", {down, across});
  }

  int rank, dim1, dim2;
  int64_t row, column, rows, length, columns;
};

Attributes Permutation(Sizes dims) { return {{"dims", std::move(dims)}}; }

// x where the mask is true, zeros elsewhere.
ir::ValueId Masked(Builder& b, ir::ValueId mask, ir::ValueId x) {
  return b.Where(mask, x, b.Constant(0, b.type(x).dtype));
}

// The diagonal of `full` as a new last dimension.
ir::ValueId TakeOut(Builder& b, ir::ValueId full, const Diagonal& at) {
  const DType dtype = b.type(full).dtype;
  ir::ValueId x = b.Sum(Masked(b, at.Mask(b), full), {at.dim2}, /*keepdim=*/true);
  x = b.Slice(x, at.dim1, at.row, at.row + at.length);
  Sizes order;
  for (int d = 0; d < at.rank; ++d) {
    if (d != at.dim1 && d != at.dim2) order.push_back(d);
  }
  order.push_back(at.dim1);
  order.push_back(at.dim2);
  x = b.Call("aten::permute", {x}, Permutation(order));
  return b.Cast(b.Call("aten::squeeze.dims", {x}, {{"dim", Sizes{at.rank - 1}}}), dtype);
}

// `part`, whose last dimension is the diagonal, repeated over all columns of dim2.
ir::ValueId SpreadOut(Builder& b, ir::ValueId part, const Diagonal& at) {
  ir::ValueId x =
      b.Call("aten::constant_pad_nd", {part},
             {{"pad", Sizes{at.row, at.rows - at.row - at.length}}, {"value", int64_t{0}}});
  x = b.Call("aten::unsqueeze", {x}, {{"dim", int64_t{-1}}});  // […, rows, 1]
  Sizes order(at.rank);
  for (int d = 0, next = 0; d < at.rank; ++d) {
    order[d] = d == at.dim1 ? at.rank - 2 : d == at.dim2 ? at.rank - 1 : next++;
  }
  return b.Call("aten::permute", {x}, Permutation(order));
}

ir::ValueId PutIn(Builder& b, ir::ValueId part, const Diagonal& at) {
  return Masked(b, at.Mask(b), SpreadOut(b, part, at));
}

}  // namespace

ValuesOrStatus DecomposeDiagonal(Builder& b, const ir::Graph& from, const ir::Node& node,
                                 Operands operands) {
  return Values{TakeOut(b, operands[0], Diagonal(node.attributes, b.type(operands[0]).dims))};
}

// For diag_embed and diagonal_backward, the inverses of diagonal.
ValuesOrStatus DecomposeDiagEmbed(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  return Values{
      PutIn(b, operands[0], Diagonal(node.attributes, from.type(node.first_result).dims))};
}

ValuesOrStatus DecomposeDiagonalScatter(Builder& b, const ir::Graph& from, const ir::Node& node,
                                        Operands operands) {
  const Diagonal at(node.attributes, b.type(operands[0]).dims);
  return Values{b.Where(at.Mask(b), SpreadOut(b, operands[1], at), operands[0])};
}

ValuesOrStatus DecomposeTrace(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  const Diagonal at({}, b.type(operands[0]).dims);
  const ir::ValueId sum = b.Sum(Masked(b, at.Mask(b), operands[0]), {0, 1}, /*keepdim=*/false);
  return AsResultsOf(b, from, node, {sum});
}

}  // namespace spmd::rules
