// SPDX-License-Identifier: Apache-2.0
// Attention in core ops. Scores are [b,hk,g,s,t]. Keys and values are shared by broadcasting over
// g, so that no dimension that may be sharded is merged with another.
#include <cmath>
#include <limits>
#include <optional>

#include "csrc/rules/tables/decompositions.h"

namespace spmd::rules {
namespace {

class Attention {
 public:
  Attention(Builder& b, const ir::Graph& from, const ir::Node& node, ir::ValueId q, ir::ValueId k,
            ir::ValueId v, ir::ValueId mask)
      : b_(b), node_(node), q_(b.type(q).dims), k_(b.type(k).dims), e_(b.type(v).dims[3]) {
    scale_ = NumberOr(node, "scale", 1 / std::sqrt(static_cast<double>(q_[3])));
    query_ = ByHead(Upcast(b, q), q_[3]);
    key_ = Shared(Upcast(b, k), q_[3]);
    value_ = Shared(Upcast(b, v), e_);
    scores_ = Masked(b.MulScalar(b.Call("aten::matmul", {query_, Transposed(key_)}), scale_), mask);
  }

  int64_t groups() const { return q_[1] / k_[1]; }
  const Attr& scale() const { return scale_; }
  ir::ValueId query() const { return query_; }
  ir::ValueId key() const { return key_; }
  ir::ValueId value() const { return value_; }
  ir::ValueId scores() const { return scores_; }

  // [b,h,s,depth] to [b,hk,g,s,depth] and back.
  ir::ValueId ByHead(ir::ValueId v, int64_t depth) {
    return b_.View(v, {q_[0], k_[1], groups(), q_[2], depth});
  }
  ir::ValueId Merged(ir::ValueId v, int64_t depth) {
    return b_.View(v, {q_[0], q_[1], q_[2], depth});
  }
  // [b,hk,t,depth] to [b,hk,1,t,depth].
  ir::ValueId Shared(ir::ValueId v, int64_t depth) {
    return b_.View(v, {k_[0], k_[1], 1, k_[2], depth});
  }
  ir::ValueId Transposed(ir::ValueId v) {
    return b_.Call("aten::transpose.int", {v}, {{"dim0", int64_t{-2}}, {"dim1", int64_t{-1}}});
  }
  ir::ValueId Infinite(ir::ValueId v) { return b_.Call("aten::isinf", {v}); }
  ir::ValueId Zero() { return b_.Constant(0, b_.type(query_).dtype); }

 private:
  ir::ValueId Masked(ir::ValueId scores, ir::ValueId mask) {
    const ir::ValueId never =
        b_.Constant(-std::numeric_limits<double>::infinity(), b_.type(scores).dtype);
    if (node_.attributes.GetBoolOr("is_causal", false)) {
      const ir::ValueId row = b_.Iota(q_[2], 0, 2), column = b_.Iota(k_[2], 1, 2);
      scores = b_.Where(b_.Call("aten::le.Tensor", {column, row}), scores, never);
    }
    if (mask == ir::kNoValue) return scores;
    const ir::ValueId by_head = MaskByHead(mask);
    if (b_.type(mask).dtype == DType::kBool) return b_.Where(by_head, scores, never);
    return b_.Add(scores, by_head);
  }

  // The mask broadcasts to [b,h,s,t]. Its head dimension, if it has one, splits as the query's
  // does.
  ir::ValueId MaskByHead(ir::ValueId mask) {
    Dims dims = b_.type(mask).dims;
    if (dims.size() < 3) return mask;
    std::vector<int64_t> size(dims.begin(), dims.end() - 3);
    const int64_t heads = dims[dims.size() - 3];
    const bool shared = heads == 1;
    for (int64_t n : {shared ? 1 : k_[1], shared ? 1 : groups(), dims[dims.size() - 2],
                      dims[dims.size() - 1]}) {
      size.push_back(n);
    }
    return b_.View(mask, std::move(size));
  }

  Builder& b_;
  const ir::Node& node_;
  Dims q_, k_;
  int64_t e_;
  Attr scale_;
  ir::ValueId query_, key_, value_, scores_;
};

}  // namespace

ValuesOrStatus DecomposeAttention(Builder& b, const ir::Graph& from, const ir::Node& node,
                                  Operands operands) {
  const int64_t depth = b.type(operands[2]).dims[3];
  Attention a(b, from, node, operands[0], operands[1], operands[2], OptionalOperand(operands, 3));
  const std::vector<int64_t> last = {-1};
  ir::ValueId top = b.Amax(a.scores(), last, /*keepdim=*/true);
  top = b.Where(a.Infinite(top), a.Zero(), top);  // rows whose scores are all masked
  const ir::ValueId exp = b.Exp(b.Sub(a.scores(), top));
  const ir::ValueId sum = b.Sum(exp, last, /*keepdim=*/true);
  const ir::ValueId empty = b.Call("aten::eq.Scalar", {sum}, {{"other", 0.0}});
  const ir::ValueId divisor = b.Where(empty, b.Constant(1, b.type(sum).dtype), sum);
  const ir::ValueId out = b.Div(b.Call("aten::matmul", {exp, a.value()}), divisor);
  const ir::ValueId logsumexp = b.Add(b.Log(sum), top);
  const Dims& rows = from.type(node.first_result + 1).dims;
  return AsResultsOf(
      b, from, node,
      {a.Merged(out, depth), b.View(logsumexp, std::vector<int64_t>(rows.begin(), rows.end()))});
}

ValuesOrStatus DecomposeAttentionBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                          Operands operands) {
  const int64_t depth = b.type(operands[3]).dims[3];
  Attention a(b, from, node, operands[1], operands[2], operands[3], OptionalOperand(operands, 6));
  const ir::ValueId grad = a.ByHead(Upcast(b, operands[0]), depth);
  const ir::ValueId out = a.ByHead(Upcast(b, operands[4]), depth);
  const ir::ValueId lse = a.ByHead(operands[5], 1);
  const ir::ValueId p = b.Where(a.Infinite(lse), a.Zero(), b.Exp(b.Sub(a.scores(), lse)));
  const ir::ValueId delta = b.Sum(b.Mul(grad, out), {-1}, /*keepdim=*/true);
  const ir::ValueId dp = b.Call("aten::matmul", {grad, a.Transposed(a.value())});
  const ir::ValueId ds = b.MulScalar(b.Mul(p, b.Sub(dp, delta)), a.scale());
  const ir::ValueId dq =
      a.Merged(b.Call("aten::matmul", {ds, a.key()}), b.type(operands[1]).dims[3]);
  auto over_groups = [&](ir::ValueId left, ir::ValueId right) {
    return b.Sum(b.Call("aten::matmul", {a.Transposed(left), right}), {2}, /*keepdim=*/false);
  };
  return AsResultsOf(b, from, node, {dq, over_groups(ds, a.query()), over_groups(p, grad)});
}

}  // namespace spmd::rules
