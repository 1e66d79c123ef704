// SPDX-License-Identifier: Apache-2.0
// Rows that are taken from a dimension by their indices, once for each block of that dimension:
//
//   spmd::index_rows(x[k·m, d], i[n], dim=0, blocks=k) -> [k·n, d]
//
// Rows b·n to (b+1)·n of the result are those of x[i] whose index is in block b, and zeros in the
// place of the others. If x is sharded by blocks, then so is the result, and a device reads what it
// holds. spmd::index_put_rows writes such rows back, block by block. See
// csrc/partition/own_rows.h.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/rules/builder.h"
#include "csrc/rules/row.h"

namespace spmd::rules {

// How an op reads or writes rows of operand 0 by their indices.
enum class RowsUse : uint8_t {
  kNone,
  kRead,       // operand 0 at the indices that follow, one for each dimension or absent
  kReadAlong,  // operand 0 along the dimension `dim` at operand 1
  kWrite,      // the last operand to operand 0 at the indices between; added if `accumulate`
  kAddAlong,   // `alpha` · operand 2 to operand 0 along the dimension `dim` at operand 1
};
RowsUse RowsUseOf(absl::string_view op);

// index_rows(self, indices…) and index_put_rows(self, indices…, values). Each index is a list of n.
absl::StatusOr<OpFactors> IndexRowsFactors(const OpCall& call);
absl::StatusOr<OpFactors> IndexPutRowsFactors(const OpCall& call);
absl::StatusOr<std::vector<TensorType>> IndexRowsTypes(const OpCall& call);
Attributes LocalRows(const OpCall& call, const OpFactors& factors, const CutFactors& cut);

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

// The dimension of the result in which rows that are read by indices into `replaced` are
// (ascending): that of the first of them if they are adjacent, else the first.
int RowsDim(absl::Span<const int> replaced);

}  // namespace spmd::rules
