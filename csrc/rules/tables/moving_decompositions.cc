// SPDX-License-Identifier: Apache-2.0
// Ops that move elements, written in ops that have rules.
#include <utility>

#include "csrc/rules/tables/decompositions.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

using Sizes = std::vector<int64_t>;

ir::ValueId Transposed(Builder& b, ir::ValueId x, int64_t dim0, int64_t dim1) {
  return b.Call("aten::transpose.int", {x}, {{"dim0", dim0}, {"dim1", dim1}});
}

ir::ValueId Flipped(Builder& b, ir::ValueId x, Sizes dims) {
  return b.Call("aten::flip", {x}, {{"dims", std::move(dims)}});
}

// Consecutive slices of x along dim, one of each length.
Values Pieces(Builder& b, ir::ValueId x, int64_t dim, const Sizes& lengths) {
  Values pieces;
  int64_t start = 0;
  for (int64_t length : lengths) {
    pieces.push_back(b.Slice(x, dim, start, start + length));
    start += length;
  }
  return pieces;
}

}  // namespace

// rot90: quarter turns from the first of "dims" to the second.
ValuesOrStatus DecomposeRot90(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  const int64_t turns = ((node.attributes.GetInt("k") % 4) + 4) % 4;
  const Sizes& dims = node.attributes.GetInts("dims");
  switch (turns) {
    case 1:
      return Values{Transposed(b, Flipped(b, operands[0], {dims[1]}), dims[0], dims[1])};
    case 2:
      return Values{Flipped(b, operands[0], dims)};
    case 3:
      return Values{Transposed(b, Flipped(b, operands[0], {dims[0]}), dims[0], dims[1])};
    default:
      return Values{b.Alias(operands[0])};
  }
}

ValuesOrStatus DecomposeChannelShuffle(Builder& b, const ir::Graph& from, const ir::Node& node,
                                       Operands operands) {
  const Dims dims = b.type(operands[0]).dims;
  const int64_t groups = node.attributes.GetInt("groups");
  SPMD_REQUIRE(groups > 0, "groups=", groups);
  Sizes split = {dims[0], groups, dims[1] / groups};
  split.insert(split.end(), dims.begin() + 2, dims.end());
  const ir::ValueId turned = Transposed(b, b.View(operands[0], split), 1, 2);
  return Values{b.View(turned, Sizes(dims.begin(), dims.end()))};
}

// Each matrix padded to all columns, stacked vertically.
ValuesOrStatus DecomposeBlockDiag(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  const TensorType result = from.type(node.first_result);
  Values rows;
  int64_t before = 0;
  for (ir::ValueId v : operands) {
    const Dims dims = b.type(v).dims;
    const int64_t columns = dims.empty() ? 1 : dims.back();
    const int64_t height = dims.size() < 2 ? 1 : dims[0];
    const ir::ValueId block = b.Cast(b.View(v, {height, columns}), result.dtype);
    rows.push_back(
        b.Call("aten::constant_pad_nd", {block},
               {{"pad", Sizes{before, result.dims[1] - before - columns}}, {"value", int64_t{0}}}));
    before += columns;
  }
  const int n = static_cast<int>(rows.size());
  return Values{b.CallAll("aten::cat", std::move(rows), {{"dim", int64_t{0}}}, {{0, n}})[0]};
}

// split_with_sizes_copy, unbind_copy: the results give the lengths.
ValuesOrStatus DecomposeSplit(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  const int rank = b.rank(operands[0]);
  const int64_t given = node.attributes.GetIntOr("dim", 0);
  const int64_t dim = given < 0 ? given + rank : given;
  Sizes lengths;
  const bool unbinds = from.type(node.first_result).rank() < rank;
  for (int r = 0; r < node.num_results; ++r) {
    lengths.push_back(unbinds ? 1 : from.type(node.first_result + r).dims[dim]);
  }
  Values pieces = Pieces(b, operands[0], dim, lengths);
  if (!unbinds) return pieces;
  for (ir::ValueId& piece : pieces) {
    piece = b.Call("aten::squeeze.dims", {piece}, {{"dim", Sizes{dim}}});
  }
  return pieces;
}

ValuesOrStatus DecomposeNarrowCopy(Builder& b, const ir::Graph& from, const ir::Node& node,
                                   Operands operands) {
  const int rank = b.rank(operands[0]);
  const int64_t dim = OpCall::Of(from, node).Dim("dim", rank);
  const int64_t given = node.attributes.GetInt("start");
  const int64_t start = given < 0 ? given + b.type(operands[0]).dims[dim] : given;
  return Values{
      b.Slice(operands[0], dim, start, CheckedAdd(start, node.attributes.GetInt("length")))};
}

}  // namespace spmd::rules
