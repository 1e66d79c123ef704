// SPDX-License-Identifier: Apache-2.0
// The sum of an unreduced value whose partial sums are matrix products, each computed directly into
// the sum.
//
//   %1: f32[2048,384] @m {},{} unreduced(sum){model} = call aten::mm(%x, %w)     on [model=8]
//   %2: f32[2048,384] @m {},{} = all_reduce(%1) {model}
//
// runs as %2 = x₀·w₀; %2 += x₁·w₁; … in the order of the devices. No partial sum exists by itself,
// which saves its memory and the time to write and read it. The cores share the sum instead of the
// partial sums: each computes blocks of rows, or of columns if there are more columns. The blocks
// depend on the shape alone, and each takes all partial sums.
//
//   %2: f32[2048,384] @m {model},{} = reduce_scatter(%1) {model} dim(0)
//
// is computed in the same way: the whole sum is computed, and the devices' tiles are parts of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/rules/op_facts.h"
#include "csrc/runtime/call_step.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/schedule.h"

namespace spmd::runtime {

// The product a·b, and a bias that is added to each of its rows.
struct Product {
  at::Tensor a, b, bias;  // [m,k], [k,n], [n] or undefined
};

// Computes sum = products[0] + …, or sum += …, block by block, for `sum` [m,n] with m, n ≥ 1.
// Throws c10::Error for a product of another size.
class ProductsInto {
 public:
  // `adds`: `sum` holds partial sums already, to which the products are added.
  ProductsInto(at::Tensor sum, bool adds, std::vector<Product> products);
  // The number of blocks for a sum of this size, a power of two. 1 means that the sum is too small
  // to be shared by cores.
  static int64_t NumBlocks(int64_t rows, int64_t columns);
  int64_t num_blocks() const { return num_blocks_; }
  int64_t bytes() const { return bytes_; }
  // Thread safety: blocks may be computed in parallel.
  void ComputeBlock(int64_t block) const;

 private:
  at::Tensor sum_;
  bool adds_;
  std::vector<Product> products_;
  int64_t bytes_ = 0;
  int dim_ = 0;
  int64_t num_blocks_ = 1;
};

// Thread safety: immutable.
class SumOfProducts {
 public:
  // Makes the sums of the move `plan` from the value `from` to the value `to`; the partial sums of
  // `from` are the sums of `products` (program::ProductsOf). Null in these cases, in which the
  // partial sums are computed and added as usual: a tile of the result is not a sum of complete
  // partial sums or one contiguous part of such a sum; a partial sum does not exist; a partial sum
  // belongs to a device whose turn comes before that of the partial sum before it, so that its
  // operands would have to wait; a sum has fewer than `least_blocks` blocks, so that the cores
  // could not share it.
  // Errors: those of CallStep::Make.
  static absl::StatusOr<std::shared_ptr<const SumOfProducts>> Make(
      const CallStep::Context& context, absl::Span<const int> products, const MovePlan& plan,
      program::ValueId from, program::ValueId to, int64_t least_blocks);

  int64_t bytes() const;  // the bytes that all products read and write
  // The tile whose item computes the sum that contains `tile`. If it is another tile, `Take` makes
  // the tile from the sum once that is computed.
  int32_t MakerOf(int64_t tile) const { return tiles_[tile].maker; }
  at::Tensor Take(int64_t tile, const ValueTable& table) const;
  // True if every device has memory of its own, because deduplication is off. Otherwise tiles are
  // views of their sum.
  bool copies() const { return copies_; }
  // The number of tiles whose memory is allocated together with this one; 0 for a view of another
  // tile's sum.
  int64_t NumMadeWith(int64_t tile) const { return tiles_[tile].num_made; }
  // The partial sums of a tile that computes its sum, as the schedule needs them.
  std::vector<Scheduler::Term> TermsOf(int64_t tile) const;
  // Prepares an item of such a tile: allocates the sum if it does not exist yet, and copies
  // operands whose elements are not in rows.
  ProductsInto Prepare(const WorkItem& work, ValueTable& table) const;
  // Whether Prepare makes such copies. If it does, one partial sum is computed at a time, so that
  // few copies exist at once.
  bool Copies(const WorkItem& work, const ValueTable& table) const;

  int64_t HeapBytes() const;

 private:
  struct Factor {
    rules::MatrixProduct form;
    int instruction;
    CallStep call;
    std::vector<int32_t> item_of_tile;  // by index of `from`
  };
  // A contiguous box of the sum that the tile `maker` computes.
  struct Tile {
    int32_t maker;
    Dims sum_dims, dims;
    int64_t offset;              // the offset of its first element
    std::vector<int32_t> terms;  // indices of `from`
    int64_t num_made = 1;
  };
  bool PlanTiles(const MovePlan& plan, const Placement& from, const Placement& to,
                 int64_t least_blocks);
  bool InOrderOfTurns() const;
  static Product MakeProduct(const Factor& factor, int32_t item, const ValueTable& table);
  at::Tensor SumOf(const Tile& maker, const at::Tensor& its_tile) const;

  program::ValueId to_ = program::kNoValue;
  DType dtype_ = DType::kF32;
  const Backend* backend_ = nullptr;
  Place place_ = {c10::Device(c10::kCPU)};
  std::vector<Factor> factors_;
  bool copies_ = false;
  std::vector<Tile> tiles_;
};

}  // namespace spmd::runtime
