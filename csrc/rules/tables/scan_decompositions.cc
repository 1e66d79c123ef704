// SPDX-License-Identifier: Apache-2.0
// Scans and top-k along a sharded dimension, block by block.
//
//   cumsum of [b c], over b:   inner = cumsum(x, c);  before = cumsum(pad(inner[:, -1]), b);
//                              inner + before         only the totals, one per block, are gathered
//   topk of [b c], over b:     topk(topk(x, c), b c)  only k candidates per block are gathered
#include <utility>

#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

using Sizes = std::vector<int64_t>;

// The number of blocks into which `n` elements are divided. It has many factors of 2 and 3, so that
// most meshes divide it evenly. 0 if there are too few elements for blocks to pay.
int64_t BlocksOf(int64_t n) {
  if (n >= 1024) return 192;
  return n > 96 ? 48 : 0;
}

Attributes Padding(int rank, int dim, int64_t before, int64_t after, double identity) {
  Sizes pad(2 * (rank - dim), 0);
  pad[pad.size() - 2] = before;
  pad[pad.size() - 1] = after;
  return {{"pad", std::move(pad)}, {"value", identity}};
}

class Scan {
 public:
  Scan(Builder& b, bool adds, int dim) : b_(b), adds_(adds), dim_(dim) {}

  ir::ValueId Of(ir::ValueId x, int64_t blocks) {
    const Dims dims = b_.type(x).dims;
    const int rank = static_cast<int>(dims.size());
    const int64_t n = dims[dim_], length = (n + blocks - 1) / blocks;
    if (length * blocks != n) {
      x = b_.Call("aten::constant_pad_nd", {x},
                  Padding(rank, dim_, 0, length * blocks - n, identity()));
    }
    Sizes split(dims.begin(), dims.end());
    split[dim_] = blocks;
    split.insert(split.begin() + dim_ + 1, length);
    const ir::ValueId inner = Along(b_.View(x, split), dim_ + 1);
    const ir::ValueId totals = Slice(inner, dim_ + 1, length - 1, length);
    const ir::ValueId shifted =
        b_.Call("aten::constant_pad_nd", {Slice(totals, dim_, 0, blocks - 1)},
                Padding(rank + 1, dim_, 1, 0, identity()));
    const ir::ValueId before = Along(shifted, dim_);
    const ir::ValueId all = adds_ ? b_.Add(inner, before) : b_.Mul(inner, before);
    Sizes joined(dims.begin(), dims.end());
    joined[dim_] = length * blocks;
    return Slice(b_.View(all, joined), dim_, 0, n);
  }

 private:
  double identity() const { return adds_ ? 0 : 1; }
  ir::ValueId Along(ir::ValueId x, int dim) {
    return b_.Call(adds_ ? "aten::cumsum" : "aten::cumprod", {x},
                   {{"dim", int64_t{dim}}, {"dtype", NoneAttr{}}});
  }
  ir::ValueId Slice(ir::ValueId x, int dim, int64_t start, int64_t end) {
    if (start == 0 && end == b_.type(x).dims[dim]) return x;
    return b_.Slice(x, dim, start, end);
  }

  Builder& b_;
  bool adds_;
  int dim_;
};

// The running sums or, unless it `adds`, products.
ValuesOrStatus ScanOf(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands,
                      bool adds) {
  const int rank = b.rank(operands[0]);
  if (rank == 0) return Values{};
  const int dim = static_cast<int>(OpCall::Of(from, node).Dim("dim", rank));
  const int64_t blocks = BlocksOf(b.type(operands[0]).dims[dim]);
  if (blocks == 0) return Values{};
  const DType dtype = from.type(node.first_result).dtype;
  const ir::ValueId x = Upcast(b, b.Cast(operands[0], dtype));
  return AsResultsOf(b, from, node, {Scan(b, adds, dim).Of(x, blocks)});
}

}  // namespace

ValuesOrStatus DecomposeCumsum(Builder& b, const ir::Graph& from, const ir::Node& node,
                               Operands operands) {
  return ScanOf(b, from, node, operands, /*adds=*/true);
}
ValuesOrStatus DecomposeCumprod(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  return ScanOf(b, from, node, operands, /*adds=*/false);
}

ValuesOrStatus DecomposeTopK(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  const TensorType type = b.type(operands[0]);
  const auto& annotation = from.value(node.operands[0]).annotation;
  if (type.rank() == 0 || !annotation) return Values{};
  const int dim = static_cast<int>(OpCall::Of(from, node).Dim("dim", type.rank()));
  const int64_t n = type.dims[dim], k = node.attributes.GetInt("k");
  const int64_t blocks = from.grid(annotation->grid).size(annotation->sharding.dims[dim].axes);
  // A candidate is an element and its index, at least three times the bytes of an element.
  constexpr int64_t kWorthwhile = 4;
  if (blocks < 2 || n % blocks != 0 || k < 1 || kWorthwhile * k * blocks > n) return Values{};
  const auto top = [&](ir::ValueId x, int along) {
    Attributes attributes = node.attributes;
    attributes.Set("dim", int64_t{along});
    return b.CallAll("aten::topk", {x}, attributes);
  };
  Sizes split(type.dims.begin(), type.dims.end());
  split[dim] = blocks;
  split.insert(split.begin() + dim + 1, n / blocks);
  const Values inner = top(b.View(operands[0], split), dim + 1);
  const ir::ValueId first =
      b.MulScalar(b.Iota(blocks, dim, type.rank() + 1), static_cast<double>(n / blocks));
  Sizes joined(type.dims.begin(), type.dims.end());
  joined[dim] = blocks * k;
  const ir::ValueId indices = b.View(b.Add(inner[1], first), joined);
  const Values outer = top(b.View(inner[0], joined), dim);
  return Values{outer[0], b.Call("aten::gather", {indices, outer[1]},
                                 {{"dim", int64_t{dim}}, {"sparse_grad", false}})};
}

}  // namespace spmd::rules
