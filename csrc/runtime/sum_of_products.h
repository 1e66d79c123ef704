// SPDX-License-Identifier: Apache-2.0
// The sum of an unreduced value whose terms are matrix products, each computed into the sum.
//
//   %1: f32[2048,384] @m {},{} unreduced(sum){model} = call aten::mm(%x, %w)     on [model=8]
//   %2: f32[2048,384] @m {},{} = all_reduce(%1) {model}
//
// runs as %2 = x₀·w₀; %2 += x₁·w₁; … in the order of the devices. No term is ever there by itself:
// neither its memory nor the ways to it and back. The cores share the sum and not the terms: blocks
// of rows, or of columns where these are more, fixed by the shape alone, each of all terms.
//
//   %2: f32[2048,384] @m {model},{} = reduce_scatter(%1) {model} dim(0)
//
// is computed in the same way: the whole sum, of which the devices' tiles are parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "csrc/program/program.h"
#include "csrc/runtime/call_step.h"
#include "csrc/runtime/moves.h"
#include "csrc/runtime/schedule.h"

namespace spmd::runtime {

// a·b, and what is added to each of its rows.
struct Product {
  at::Tensor a, b, bias;  // [m,k], [k,n], [n] or undefined
};

// sum = products[0] + …, or sum += …: one block of it. sum [m,n]; m, n ≥ 1. Throws c10::Error for
// a product of another size.
class ProductsInto {
 public:
  // `adds`: the sum holds terms already.
  ProductsInto(at::Tensor sum, bool adds, std::vector<Product> products);
  // Of a sum of this size, a power of two. One: too small to be shared by cores.
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
  // Of the move `plan` of one value into another; the terms of the first are the sums of `products`
  // (FusedSums::ProductsOf). Null where a tile of the result is not a sum of whole terms or a part
  // of one in one piece; where a term is not there, or is of a device that has its turn before that
  // of the term before, so that all that it is made of would wait; or where a sum has fewer blocks:
  // cores that could not share it share the terms, the usual way. Errors: those of CallStep::Make.
  static absl::StatusOr<std::shared_ptr<const SumOfProducts>> Make(
      const CallStep::Context& context, absl::Span<const int> products, const MovePlan& plan,
      program::ValueId from, program::ValueId to, int64_t least_blocks);

  int64_t bytes() const;  // that all products read and write
  // The tile whose item computes the sum that a tile is, or is a part of. Where that is another
  // one, the tile is taken of it when the sum is there.
  int32_t MakerOf(int64_t tile) const { return tiles_[tile].maker; }
  at::Tensor Take(int64_t tile, const ValueTable& table) const;
  // With deduplication off every device has memory of its own. Else parts share the sum's,
  bool copies() const { return copies_; }
  // and so many tiles' memory is there with this one: all parts or, taken of a sum, none.
  int64_t NumMadeWith(int64_t tile) const { return tiles_[tile].num_made; }
  // What the schedule has to know of the terms of a tile that makes its sum.
  std::vector<Scheduler::Term> TermsOf(int64_t tile) const;
  // The work of an item on such a tile. Makes the sum where it is not there yet, and copies of
  // operands that do not lie as rows.
  ProductsInto Prepare(const WorkItem& work, ValueTable& table) const;
  // Whether there are such: then one term at a time keeps the copies few.
  bool Copies(const WorkItem& work, const ValueTable& table) const;

  int64_t HeapBytes() const;

 private:
  enum class Form : uint8_t { kMm, kLinear, kLinearDInput, kLinearDWeight };
  struct Factor {
    Form form;
    int instruction;
    CallStep call;
    std::vector<int32_t> item_of_tile;  // by index of the terms' value
  };
  // A box in the sum that the tile `maker` makes, contiguous there.
  struct Tile {
    int32_t maker;
    Dims sum_dims, dims;
    int64_t offset;              // of its first element
    std::vector<int32_t> terms;  // indices of the terms' value
    int64_t num_made = 1;
  };
  bool PlanTiles(const MovePlan& plan, const Placement& from, const Placement& to,
                 int64_t least_blocks);
  bool InOrderOfTurns() const;
  static Product MakeProduct(const Factor& factor, int32_t item, const ValueTable& table);
  at::Tensor SumOf(const Tile& maker, const at::Tensor& its_tile) const;

  program::ValueId to_ = program::kNoValue;
  DType dtype_ = DType::kF32;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::vector<Factor> factors_;
  bool copies_ = false;
  std::vector<Tile> tiles_;
};

}  // namespace spmd::runtime
