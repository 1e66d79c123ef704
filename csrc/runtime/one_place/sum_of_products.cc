// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/one_place/sum_of_products.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "csrc/program/one_place/fuse_sums.h"
#include "csrc/rules/registry.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/util/status.h"

namespace spmd::runtime {

using program::Instruction;
using program::ValueId;

namespace {

// Products of blocks with fewer rows are slow (docs/design/0019-sums-of-products.md).
constexpr int64_t kLeastOfBlock = 192;
constexpr int64_t kLeastElements = int64_t{1} << 14;

std::array<int64_t, 2> SizesOfRows(const at::Tensor& x) {
  return {c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)};
}

// The tensor [..., n] as [rows, n]; a view if the strides permit it.
at::Tensor AsRows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape(SizesOfRows(x)); }

bool LiesAsRows(const at::Tensor& x) { return x.dim() <= 2 || compat::HasView(x, SizesOfRows(x)); }

// PyTorch's linear also takes a weight of one dimension, and a bias of any shape that broadcasts.
bool IsOfMatrices(const program::Program& program, const Instruction& linear) {
  const auto dims = [&](ValueId id) -> const Dims& { return program.values[id].type.dims; };
  const bool has_bias = linear.operands.size() > 2 && linear.operands[2] != program::kNoValue;
  return dims(linear.operands[1]).size() == 2 &&
         (!has_bias || dims(linear.operands[2]) == Dims{dims(linear.results[0]).back()});
}

// The offset of the first element of a piece of a contiguous tensor; nullopt if the piece is not
// contiguous there.
std::optional<int64_t> OffsetOf(const Piece& piece, const Dims& dims) {
  int64_t offset = 0, stride = 1;
  bool all = true;  // the piece has all of the dimensions after d
  for (size_t d = dims.size(); d-- > 0;) {
    if (!all && piece.size[d] != 1) return std::nullopt;
    all = all && piece.size[d] == dims[d];
    offset += piece.source_offset[d] * stride;
    stride *= dims[d];
  }
  return offset;
}

at::Tensor PartOf(const at::Tensor& sum, const Dims& dims, int64_t offset) {
  const at::IntArrayRef sizes(dims.data(), dims.size());
  if (sizes == sum.sizes()) return sum;
  return sum.as_strided(sizes, c10::contiguous_strides(sizes), sum.storage_offset() + offset);
}

AxisList ReducedAxes(const Sharding& from, const Sharding& to) {
  AxisList reduced;
  for (AxisId axis : from.unreduced) {
    if ((to.UnreducedAxes() & MaskOf(axis)) == 0) reduced.push_back(axis);
  }
  return reduced;
}

}  // namespace

ProductsInto::ProductsInto(at::Tensor sum, bool adds, std::vector<Product> products)
    : sum_(std::move(sum)), adds_(adds), products_(std::move(products)) {
  dim_ = sum_.size(0) >= sum_.size(1) ? 0 : 1;
  num_blocks_ = NumBlocks(sum_.size(0), sum_.size(1));
  for (const Product& p : products_) {
    TORCH_CHECK(
        p.a.size(0) == sum_.size(0) && p.b.size(1) == sum_.size(1) && p.a.size(1) == p.b.size(0),
        "a product of ", p.a.sizes(), " and ", p.b.sizes(), " in a sum of ", sum_.sizes());
    bytes_ += static_cast<int64_t>(p.a.element_size()) * (p.a.numel() + p.b.numel() + sum_.numel());
  }
}

int64_t ProductsInto::NumBlocks(int64_t rows, int64_t columns) {
  const int64_t blocks =
      std::min(std::max(rows, columns) / kLeastOfBlock, rows * columns / kLeastElements);
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(blocks, 1))));
}

void ProductsInto::ComputeBlock(int64_t block) const {
  const int64_t extent = sum_.size(dim_);
  const int64_t begin = extent * block / num_blocks_;
  const int64_t size = extent * (block + 1) / num_blocks_ - begin;
  const auto part = [&](const at::Tensor& t, int64_t dim) {
    return size == extent ? t : t.narrow(dim, begin, size);
  };
  at::Tensor sum = part(sum_, dim_);
  bool adds = adds_;
  for (const Product& p : products_) {
    const at::Tensor a = dim_ == 0 ? part(p.a, 0) : p.a;
    const at::Tensor b = dim_ == 1 ? part(p.b, 1) : p.b;
    const at::Tensor bias = p.bias.defined() && dim_ == 1 ? part(p.bias, 0) : p.bias;
    if (adds) {
      if (bias.defined()) sum.add_(bias);
      sum.addmm_(a, b);
    } else if (bias.defined()) {
      at::addmm_out(sum, bias, a, b);
    } else {
      at::mm_out(sum, a, b);
    }
    adds = true;
  }
}

absl::StatusOr<std::shared_ptr<const SumOfProducts>> SumOfProducts::Make(
    const CallStep::Context& context, absl::Span<const int> products, const MovePlan& plan,
    ValueId from, ValueId to, int64_t least_blocks) {
  auto made = std::make_shared<SumOfProducts>();
  made->to_ = to;
  made->dtype_ = context.program.values[to].type.dtype;
  if (!made->PlanTiles(plan, *context.placements[from], *context.placements[to], least_blocks)) {
    return nullptr;
  }
  made->backend_ = &context.backend;
  made->place_ = plan.tiles[0].place;
  for (const int index : products) {
    const Instruction call = program::ProductIn(context.program.instructions[index]);
    const rules::MatrixProduct form = *rules::FactsOf(call.op).product;
    // If the left factor is transposed, the rows of both are summed over.
    if (!form.left_transposed && !IsOfMatrices(context.program, call)) return nullptr;
    SPMD_ASSIGN_OR_RETURN(CallStep step, CallStep::Make(context, call));
    if (!step.identity(0).empty()) return nullptr;
    Factor factor{form, index, std::move(step), {}};
    factor.item_of_tile.resize(context.placements[call.results[0]]->count());
    std::vector<TileRef> tiles;
    for (int64_t i = 0; i < factor.call.num_items(); ++i) {
      tiles.clear();
      factor.call.AppendReads(i, tiles);
      // An absent operand is a bias.
      if (tiles.size() < 2) return nullptr;
      for (const TileRef& tile : tiles) {
        if (context.program.values[tile.value].type.dtype != made->dtype_) return nullptr;
      }
      tiles.clear();
      factor.call.AppendWrites(i, tiles);
      for (const TileRef& tile : tiles) factor.item_of_tile[tile.index] = static_cast<int32_t>(i);
    }
    made->factors_.push_back(std::move(factor));
  }
  if (!made->InOrderOfTurns()) return nullptr;
  return std::shared_ptr<const SumOfProducts>(std::move(made));
}

// False if some tile is not a sum of complete partial sums or a contiguous part of one, if
// something else needs these partial sums, or if a sum is too small.
bool SumOfProducts::PlanTiles(const MovePlan& plan, const Placement& from, const Placement& to,
                              int64_t least_blocks) {
  if (!(from.grid() == to.grid())) return false;
  copies_ = to.per_position();
  const AxisList reduced = ReducedAxes(from.sharding(), to.sharding());
  std::vector<uint8_t> used(from.count(), 0);
  for (size_t i = 0; i < plan.tiles.size(); ++i) {
    const TileMove& move = plan.tiles[i];
    if (move.action != TileMove::Action::kReduce || NumElements(move.dims) == 0 ||
        move.dims.empty() || move.place != plan.tiles[0].place) {
      return false;
    }
    const int64_t position = to.PositionOf(static_cast<int64_t>(i));
    const auto maker =
        static_cast<int32_t>(to.IndexAt(from.grid().WithCoordinate(position, reduced, 0)));
    Tile tile{maker, {}, move.dims, 0, {}, 1};
    for (size_t r = 0; r < move.terms.size(); ++r) {
      const std::vector<Piece>& pieces = move.terms[r];
      if (pieces.size() != 1 || pieces[0].source < 0 || pieces[0].size != move.dims) return false;
      // The plan may name another device that holds the same tile.
      const int64_t source =
          from.IndexAt(from.grid().WithCoordinate(position, reduced, static_cast<int64_t>(r)));
      if (from.TileOf(source) != from.TileOf(pieces[0].source)) return false;
      const Dims& dims = from.DimsOf(source);
      const std::optional<int64_t> offset = OffsetOf(pieces[0], dims);
      if (!offset.has_value() || (r > 0 && (*offset != tile.offset || dims != tile.sum_dims)) ||
          (maker == static_cast<int32_t>(i) && std::exchange(used[source], 1) != 0)) {
        return false;
      }
      tile.offset = *offset;
      tile.sum_dims = dims;
      tile.terms.push_back(static_cast<int32_t>(source));
    }
    const int64_t columns = tile.sum_dims.back();
    if (ProductsInto::NumBlocks(NumElements(tile.sum_dims) / columns, columns) < least_blocks) {
      return false;
    }
    tiles_.push_back(std::move(tile));
  }
  for (size_t i = 0; i < tiles_.size(); ++i) {
    Tile& tile = tiles_[i];
    Tile& maker = tiles_[tile.maker];
    if (maker.maker != tile.maker || maker.terms != tile.terms) return false;
    if (copies_ || tile.maker == static_cast<int32_t>(i)) continue;
    tile.num_made = 0;
    ++maker.num_made;
  }
  return !tiles_.empty();
}

// Whether the partial sums of each sum are added in the order of the devices' turns. They need not
// be: devices take turns in the order of their numbers, partial sums are added in the order of the
// mesh.
bool SumOfProducts::InOrderOfTurns() const {
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (tiles_[i].maker != static_cast<int32_t>(i)) continue;
    int64_t latest = 0;
    for (const Scheduler::Term& term : TermsOf(static_cast<int64_t>(i))) {
      if (term.work->devices.last < latest) return false;
      latest = std::max(latest, term.work->devices.first);
    }
  }
  return true;
}

int64_t SumOfProducts::bytes() const {
  int64_t bytes = 0;
  for (const Factor& factor : factors_) bytes += factor.call.bytes();
  return bytes;
}

std::vector<Scheduler::Term> SumOfProducts::TermsOf(int64_t tile) const {
  std::vector<Scheduler::Term> terms;
  for (const int32_t term : tiles_[tile].terms) {
    Scheduler::Term& made = terms.emplace_back();
    Scheduler::Work& work = made.work.emplace();
    for (const Factor& factor : factors_) {
      const int32_t item = factor.item_of_tile[term];
      factor.call.AppendReads(item, made.reads);
      work.devices = factor.call.DevicesOf(item);
      work.bytes += factor.call.bytes() / std::max<int64_t>(factor.call.num_items(), 1);
      work.step = std::max(work.step, factor.instruction);
    }
  }
  return terms;
}

bool SumOfProducts::Copies(const WorkItem& work, const ValueTable& table) const {
  std::vector<TileRef> reads;
  for (int32_t k = work.begin_term; k < work.end_term; ++k) {
    for (const Factor& factor : factors_) {
      factor.call.AppendReads(factor.item_of_tile[tiles_[work.index].terms[k]], reads);
    }
  }
  return std::any_of(reads.begin(), reads.end(), [&](const TileRef& tile) {
    return !LiesAsRows(table[tile.value][tile.index]);
  });
}

Product SumOfProducts::MakeProduct(const Factor& factor, int32_t item, const ValueTable& table) {
  std::vector<TileRef> reads;
  factor.call.AppendReads(item, reads);
  const auto operand = [&](size_t k) -> const at::Tensor& {
    return table[reads[k].value][reads[k].index];
  };
  const auto matrix = [&](size_t k, bool transposed) {
    const at::Tensor rows = AsRows(operand(k));
    return transposed ? rows.t() : rows;
  };
  return {matrix(0, factor.form.left_transposed), matrix(1, factor.form.right_transposed),
          reads.size() > 2 ? operand(2) : at::Tensor()};
}

// The sum of which the maker's tile is a part.
at::Tensor SumOfProducts::SumOf(const Tile& maker, const at::Tensor& its_tile) const {
  const at::IntArrayRef dims(maker.sum_dims.data(), maker.sum_dims.size());
  return its_tile.as_strided(dims, c10::contiguous_strides(dims),
                             its_tile.storage_offset() - maker.offset);
}

at::Tensor SumOfProducts::Take(int64_t index, const ValueTable& table) const {
  const Tile& tile = tiles_[index];
  const at::Tensor part =
      PartOf(SumOf(tiles_[tile.maker], table[to_][tile.maker]), tile.dims, tile.offset);
  return copies_ ? part.clone() : part;
}

ProductsInto SumOfProducts::Prepare(const WorkItem& work, ValueTable& table) const {
  const Tile& tile = tiles_[work.index];
  at::Tensor& made = table[to_][work.index];
  const bool adds = work.begin_term > 0;
  at::Tensor sum;
  if (adds) {
    sum = SumOf(tile, made);
  } else {
    sum = backend_->Allocate(place_, at::IntArrayRef(tile.sum_dims.data(), tile.sum_dims.size()),
                             ToScalarType(dtype_));
    made = PartOf(sum, tile.dims, tile.offset);
  }
  std::vector<Product> products;
  for (int32_t k = work.begin_term; k < work.end_term; ++k) {
    for (const Factor& factor : factors_) {
      products.push_back(MakeProduct(factor, factor.item_of_tile[tile.terms[k]], table));
    }
  }
  return {AsRows(sum), adds, std::move(products)};
}

}  // namespace spmd::runtime
