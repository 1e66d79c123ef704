// SPDX-License-Identifier: Apache-2.0
// Rows that are taken from a dimension by their indices, once for each block of that dimension:
//
//   spmd::index_rows(x[k·m, d], i[n], dim=0, blocks=k) -> [k·n, d]
//
// Rows b·n to (b+1)·n of the result are those of x[i] whose index is in block b, and zeros in the
// place of the others. If x is sharded by blocks, then so is the result, and a device reads what it
// holds. spmd::index_put_rows writes such rows back, block by block. See
// csrc/partition/own_rows.h.
//
// Rows pass from program to program in this form:
//
//   spmd::rows_apart(y[n, d], i[n], dim=0, size=k·m, blocks=k) -> [k·n, d]
//   spmd::rows_together(r[k·n, d], i[n], dim=0, size=k·m, blocks=k) -> [n, d]
//
// The first has row y[r] in the block in which index i[r] is, and zeros in the other blocks; the
// second is its inverse, and does not look at rows that do not belong to their block.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/row.h"
#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {

// How an op reads or writes rows of operand 0 by their indices.
enum class RowsUse : uint8_t {
  kNone,
  kRead,       // operand 0 at the indices that follow, one for each dimension or absent
  kReadAlong,  // operand 0 along the dimension `dim` at operand 1
  kWrite,      // the last operand to operand 0 at the indices between; added if `accumulate`
  kAddAlong,   // `alpha` · operand 2 to operand 0 along the dimension `dim` at operand 1
  kApart,      // operand 0, once for each block, by the list in operand 1
  kTogether,   // the inverse
};
RowsUse RowsUseOf(absl::string_view op);
inline constexpr char kRowsTogether[] = "spmd::rows_together";

// index_rows(self, indices…) and index_put_rows(self, indices…, values). Each index is a list of n.
absl::StatusOr<OpFactors> IndexRowsFactors(const OpCall& call);
absl::StatusOr<OpFactors> IndexPutRowsFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> IndexRowsTypes(const OpCall& call);
Attributes LocalRows(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

// rows_apart(rows, list) and rows_together(rows, list). The dimension of the rows is whole.
absl::StatusOr<OpFactors> RowsApartFactors(const OpCall& call);
absl::StatusOr<OpFactors> RowsTogetherFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> RowsApartTypes(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> RowsTogetherTypes(const OpCall& call);
ValuesOrStatus RowsApartByBlocks(Builder& b, const ir::Graph& from, const ir::Node& node,
                                 Operands operands);
ValuesOrStatus RowsTogetherByBlocks(Builder& b, const ir::Graph& from, const ir::Node& node,
                                    Operands operands);

// Which rows of which blocks: dimension `dim` has n rows, whose indices refer to a dimension of
// `size` in `blocks`.
struct BlocksOfRows {
  int dim = 0;
  int64_t size = 0, blocks = 0;
  // Of a call of rows_apart or rows_together.
  static BlocksOfRows Of(const OpCall& call);
};

// --- how rows of blocks are written in ops (csrc/partition/own_rows.cc) ---

// index_rows(self, indices) for `dim` in `blocks`. `indices` has one for each dimension of self, or
// kNoValue.
ir::ValueId ReadRows(Builder& b, ir::ValueId self, absl::Span<const ir::ValueId> indices,
                     bool may_be_negative, int dim, int64_t blocks);
// index_put_rows, likewise.
ir::ValueId WriteRows(Builder& b, ir::ValueId self, absl::Span<const ir::ValueId> indices,
                      ir::ValueId values, bool accumulate, bool may_be_negative, int dim,
                      int64_t blocks);
// [blocks · n]: whether row r of block b has its index, list[r], in block b of a dimension of
// `size`.
ir::ValueId RowsOfBlocks(Builder& b, ir::ValueId list, int64_t size, int64_t blocks);
// `value` with zeros along dimension `dim` where `mask`, which RowsOfBlocks gave, is false.
ir::ValueId OnlyRows(Builder& b, ir::ValueId mask, ir::ValueId value, int dim);
// The sum of the blocks of dimension `dim`.
ir::ValueId SumOfBlocks(Builder& b, ir::ValueId value, int dim, int64_t blocks);
// Dimension `dim` `blocks` times, one after the other.
ir::ValueId RowsForBlocks(Builder& b, ir::ValueId value, int dim, int64_t blocks);

// rows_apart(value, list).
ir::ValueId RowsApart(Builder& b, ir::ValueId value, ir::ValueId list, const BlocksOfRows& of);

// The dimension of the result in which rows that are read by indices into `replaced` are
// (ascending): that of the first of them if they are adjacent, else the first.
int RowsDim(absl::Span<const int> replaced);

}  // namespace spmd::rules
