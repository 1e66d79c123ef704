// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/rings.h"

#include <limits>

namespace spmd::rules {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// One attention over n blocks of queries and of keys. A tensor [b,h,s,d] is [b,n·h,s/n,d] *by
// blocks*. What travels is [b,n,hk,t/n,…]: one roll moves every block to the next device.
class Ring {
 public:
  // `query` is the operand with the queries, before the keys and the values.
  Ring(Builder& b, const ir::Node& node, Operands operands, int query, int64_t n)
      : b_(b),
        node_(node),
        n_(n),
        causal_(node.attributes.GetBoolOr("is_causal", false)),
        q_(b.type(operands[query]).dims),
        k_(b.type(operands[query + 1]).dims),
        e_(b.type(operands[query + 2]).dims[3]),
        alike_(b.type(operands[query + 1]).dtype == b.type(operands[query + 2]).dtype) {}

  // A causal mask is that of whole blocks if blocks of queries and keys have the same length. A
  // mask that is an operand has blocks of its own, which is not written here.
  bool IsPossible(ir::ValueId mask) const {
    return mask == ir::kNoValue && alike_ && q_[2] % n_ == 0 && k_[2] % n_ == 0 && k_[2] > 0 &&
           (!causal_ || q_[2] == k_[2]);
  }

  int64_t steps() const { return n_; }

  // [b,h,s] or [b,h,s,d].
  ir::ValueId ByBlocks(ir::ValueId v) {
    const ir::ValueId apart = Apart(v);
    std::vector<int64_t> size = SizeOf(apart);
    size[2] *= size[1];
    size.erase(size.begin() + 1);
    return b_.View(apart, std::move(size));
  }
  ir::ValueId Together(ir::ValueId v, int64_t heads) {
    std::vector<int64_t> size = SizeOf(v);
    size[1] = n_;
    size.insert(size.begin() + 2, heads);
    return Joined(b_.View(v, std::move(size)));
  }

  ir::ValueId Travelling(ir::ValueId key, ir::ValueId value) { return Apart(Beside(key, value)); }
  ir::ValueId PassedOn(ir::ValueId v) {
    return b_.Call("aten::roll", {v},
                   {{"shifts", std::vector<int64_t>{1}}, {"dims", std::vector<int64_t>{1}}});
  }
  ir::ValueId Key(ir::ValueId travelling) { return Part(travelling, 0, k_[3]); }
  ir::ValueId Value(ir::ValueId travelling) { return Part(travelling, k_[3], k_[3] + e_); }
  // The inverse of Key and Value, for their gradients.
  ir::ValueId Travelling(ir::ValueId key_by_blocks, ir::ValueId value_by_blocks, DType dtype) {
    const ir::ValueId both = Beside(b_.Cast(key_by_blocks, dtype), b_.Cast(value_by_blocks, dtype));
    return b_.View(both, {q_[0], n_, k_[1], k_[2] / n_, k_[3] + e_});
  }
  // Keys and values when they are back.
  std::vector<ir::ValueId> Arrived(ir::ValueId travelling) {
    const ir::ValueId both = Joined(travelling);
    return {b_.Slice(both, 3, 0, k_[3]), b_.Slice(both, 3, k_[3], k_[3] + e_)};
  }

  // What is [b,n·h,s/n] where the queries see the keys of step `step`, and `hidden` elsewhere:
  // under a causal mask the keys of a later block are not seen.
  ir::ValueId Seen(int64_t step, ir::ValueId v, double hidden) {
    if (!causal_ || step == 0) return v;
    const ir::ValueId seen = b_.Call("aten::ge.Scalar", {b_.Iota(n_ * q_[1], 1, 3)},
                                     {{"other", static_cast<int64_t>(step * q_[1])}});
    return b_.Where(seen, v, b_.Constant(hidden, b_.type(v).dtype));
  }

  // In step 0 every block of queries meets its own keys.
  Attributes AttributesOf(int64_t step) const {
    Attributes attributes = node_.attributes;
    attributes.Set("is_causal", causal_ && step == 0);
    return attributes;
  }

 private:
  std::vector<int64_t> SizeOf(ir::ValueId v) const {
    const Dims& dims = b_.type(v).dims;
    return {dims.begin(), dims.end()};
  }
  // [b,h,s,…] as [b,n,h,s/n,…] and back.
  ir::ValueId Apart(ir::ValueId v) {
    std::vector<int64_t> size = SizeOf(v);
    size[2] /= n_;
    size.insert(size.begin() + 2, n_);
    return Swapped(b_.View(v, std::move(size)));
  }
  ir::ValueId Joined(ir::ValueId v) {
    const ir::ValueId swapped = Swapped(v);
    std::vector<int64_t> size = SizeOf(swapped);
    size[2] *= size[3];
    size.erase(size.begin() + 3);
    return b_.View(swapped, std::move(size));
  }
  ir::ValueId Swapped(ir::ValueId v) {
    std::vector<int64_t> dims(b_.rank(v));
    for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d);
    std::swap(dims[1], dims[2]);
    return b_.Permute(v, std::move(dims));
  }
  ir::ValueId Beside(ir::ValueId key, ir::ValueId value) {
    return b_.CallAll("aten::cat", {key, value}, {{"dim", int64_t{3}}}, {{0, 2}})[0];
  }
  ir::ValueId Part(ir::ValueId travelling, int64_t from, int64_t to) {
    return b_.View(b_.Slice(travelling, 4, from, to), {q_[0], n_ * k_[1], k_[2] / n_, to - from});
  }

  Builder& b_;
  const ir::Node& node_;
  int64_t n_;
  bool causal_;
  Dims q_, k_;
  int64_t e_;
  bool alike_;  // keys and values have one type, so that they travel in one tensor
};

// The result of several blocks of keys, from the results of each and the logarithms of their sums:
//
//   lse = log Σ_i exp(lse_i)      out = Σ_i exp(lse_i - lse) · out_i
ValuesOrStatus RingOfAttention(Builder& b, const ir::Graph& from, const ir::Node& node,
                               Operands operands, int64_t devices) {
  Ring ring(b, node, operands, /*query=*/0, devices);
  if (!ring.IsPossible(OptionalOperand(operands, 3))) return Values{};
  const int64_t heads = b.type(operands[0]).dims[1];
  const ir::ValueId query = ring.ByBlocks(operands[0]);
  ir::ValueId travelling = ring.Travelling(operands[1], operands[2]);
  ir::ValueId out = ir::kNoValue, sum = ir::kNoValue;
  const auto scaled = [&](ir::ValueId v, ir::ValueId log) {
    std::vector<int64_t> size(b.type(log).dims.begin(), b.type(log).dims.end());
    size.push_back(1);
    return b.Mul(v, b.View(b.Exp(log), std::move(size)));
  };
  for (int64_t step = 0; step < ring.steps(); ++step) {
    if (step > 0) travelling = ring.PassedOn(travelling);
    const std::vector<ir::ValueId> block =
        b.CallAll(node.op, {query, ring.Key(travelling), ring.Value(travelling), ir::kNoValue},
                  ring.AttributesOf(step));
    const ir::ValueId block_out = Upcast(b, block[0]);
    const ir::ValueId block_sum = ring.Seen(step, block[1], -kInf);
    if (step == 0) {
      out = block_out;
      sum = block_sum;
      continue;
    }
    const ir::ValueId both = b.Call("aten::logaddexp", {sum, block_sum});
    out = b.Add(scaled(out, b.Sub(sum, both)), scaled(block_out, b.Sub(block_sum, both)));
    sum = both;
  }
  return AsResultsOf(b, from, node, {ring.Together(out, heads), ring.Together(sum, heads)});
}

// The gradients of a block follow from the logarithms of the sums over all blocks. Those of keys
// and values travel with them, and one step further to where they came from.
ValuesOrStatus RingOfAttentionBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                       Operands operands, int64_t devices) {
  Ring ring(b, node, operands, /*query=*/1, devices);
  if (!ring.IsPossible(OptionalOperand(operands, 6))) return Values{};
  const int64_t heads = b.type(operands[1]).dims[1];
  const DType dtype = ComputedIn(b.type(operands[1]).dtype);
  const ir::ValueId grad = ring.ByBlocks(operands[0]), query = ring.ByBlocks(operands[1]);
  const ir::ValueId out = ring.ByBlocks(operands[4]), sum = ring.ByBlocks(operands[5]);
  ir::ValueId travelling = ring.Travelling(operands[2], operands[3]);
  ir::ValueId grad_query = ir::kNoValue, grads = ir::kNoValue;
  for (int64_t step = 0; step < ring.steps(); ++step) {
    if (step > 0) travelling = ring.PassedOn(travelling);
    // Weights are exp(score - sum): of keys that are not seen, zero.
    const std::vector<ir::ValueId> block =
        b.CallAll(node.op,
                  {grad, query, ring.Key(travelling), ring.Value(travelling), out,
                   ring.Seen(step, sum, kInf), ir::kNoValue},
                  ring.AttributesOf(step));
    const ir::ValueId of_query = b.Cast(block[0], dtype);
    const ir::ValueId of_keys = ring.Travelling(block[1], block[2], dtype);
    grad_query = step == 0 ? of_query : b.Add(grad_query, of_query);
    grads = step == 0 ? of_keys : b.Add(ring.PassedOn(grads), of_keys);
  }
  const std::vector<ir::ValueId> of_keys = ring.Arrived(ring.PassedOn(grads));
  return AsResultsOf(b, from, node, {ring.Together(grad_query, heads), of_keys[0], of_keys[1]});
}

}  // namespace

const RingForm kRingOfAttention = {2, 0, {1, 2}, &RingOfAttention};
const RingForm kRingOfAttentionBackward = {2, 1, {2, 3}, &RingOfAttentionBackward};

}  // namespace spmd::rules
