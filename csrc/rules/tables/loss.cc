// SPDX-License-Identifier: Apache-2.0
// Losses that are element-wise followed by a reduction over everything. Their kernels divide by the
// number of elements that they get, which is wrong on a tile, so they are always written in core
// ops. Margin losses are recorded without a reduction.
#include "absl/strings/str_cat.h"
#include "csrc/rules/einsum.h"
#include "csrc/rules/families.h"
#include "csrc/rules/promotion.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/rules/tables/decompositions.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

absl::StatusOr<OpFactors> LossFactors(const OpCall& call) {
  return call.attrs().GetIntOr("reduction", LossReduction::kMean) == LossReduction::kNone
             ? BroadcastFactors(call)
             : WholeFactors(call);
}

// Losses that treat each row separately, if nothing is reduced and there are rows. `text` is for
// these; operand `input` has a row for each loss.
absl::StatusOr<OpFactors> RowLossFactors(const OpCall& call, int input, absl::string_view text) {
  const bool by_row =
      call.attrs().GetIntOr("reduction", LossReduction::kMean) == LossReduction::kNone;
  if (!by_row || call.operand(input).rank() != 2) return WholeFactors(call);
  return FactorsByText(call, text);
}
absl::StatusOr<OpFactors> MultiMarginFactors(const OpCall& call) {
  return RowLossFactors(call, 0, "n [c], n, [c]? -> n");
}
absl::StatusOr<OpFactors> MultiMarginBackwardFactors(const OpCall& call) {
  return RowLossFactors(call, 1, "n, n [c], n, [c]? -> n [c]");
}
absl::StatusOr<OpFactors> MultilabelMarginFactors(const OpCall& call) {
  return RowLossFactors(call, 0, "n [c], n [c] -> n, n [c]");
}
absl::StatusOr<OpFactors> MultilabelMarginBackwardFactors(const OpCall& call) {
  return RowLossFactors(call, 1, "n, n [c], n [c], n [c] -> n [c]");
}

// ctc_loss treats the sequences of a batch separately. csrc/runtime/kernels describes the operands.
absl::StatusOr<std::vector<TensorType>> CtcLossTypes(const OpCall& call) {
  const TensorType& log_probs = call.operand(0);
  const int64_t steps = log_probs.dims[0], batch = log_probs.dims[1];
  const int64_t longest = call.attrs().GetInt("longest");
  return std::vector<TensorType>{
      {log_probs.dtype, {batch}},
      {log_probs.dtype, {batch, steps, CheckedAdd(CheckedMul(2, longest), 1)}}};
}
absl::StatusOr<std::vector<TensorType>> CtcLossBackwardTypes(const OpCall& call) {
  return std::vector<TensorType>{call.operand(1)};
}

// Element-wise arithmetic on the operands of a loss: x is the input, t the target.
class Terms {
 public:
  Terms(Builder& b, const ir::Node& node) : b_(b), node_(node) {}

  ir::ValueId Negated(ir::ValueId v) { return b_.Neg(v); }
  ir::ValueId OneMinus(ir::ValueId v) { return b_.AddScalar(b_.Neg(v), 1); }
  ir::ValueId AtLeast(ir::ValueId v, double min) {
    return b_.Call("aten::clamp_min", {v}, {{"min", min}});
  }
  ir::ValueId Abs(ir::ValueId v) { return b_.Call("aten::abs", {v}); }
  ir::ValueId Log1p(ir::ValueId v) { return b_.Call("aten::log1p", {v}); }
  ir::ValueId Compare(const char* op, ir::ValueId v, const Attr& other) {
    return b_.Call(absl::StrCat("aten::", op, ".Scalar"), {v}, {{"other", other}});
  }
  // Half the square where |x - t| is below the threshold, linear beyond.
  ir::ValueId SmoothL1(ir::ValueId x, ir::ValueId t) {
    const Attr beta = NumberOr(node_, "beta", 1);
    const ir::ValueId d = Abs(b_.Sub(x, t));
    return b_.Where(Compare("lt", d, beta), b_.DivScalar(b_.MulScalar(b_.Square(d), 0.5), beta),
                    b_.AddScaled(d, beta, -0.5));
  }
  ir::ValueId Huber(ir::ValueId x, ir::ValueId t) {
    const Attr delta = NumberOr(node_, "delta", 1);
    const ir::ValueId d = Abs(b_.Sub(x, t));
    return b_.Where(Compare("le", d, delta), b_.MulScalar(b_.Square(d), 0.5),
                    b_.MulScalar(b_.AddScaled(d, delta, -0.5), delta));
  }
  // Logarithms are clamped at -100, as in PyTorch.
  ir::ValueId CrossEntropy(ir::ValueId probability, ir::ValueId t) {
    const ir::ValueId x =
        b_.Call("spmd::in_range", {probability},
                {{"low", 0.0},
                 {"high", 1.0},
                 {"refusal", std::string("all elements of input should be between 0 and 1")}});
    const ir::ValueId miss = b_.Mul(OneMinus(t), AtLeast(Log1p(b_.Neg(x)), -100));
    return b_.Neg(b_.Add(b_.Mul(t, AtLeast(b_.Log(x), -100)), miss));
  }
  ir::ValueId CrossEntropyOfLogits(ir::ValueId x, ir::ValueId t, ir::ValueId pos_weight) {
    const ir::ValueId low = b_.Call("aten::clamp_max", {x}, {{"max", 0.0}});
    ir::ValueId log_sigmoid = b_.Sub(low, Log1p(b_.Exp(b_.Neg(Abs(x)))));
    if (pos_weight != ir::kNoValue) {
      const ir::ValueId extra = b_.Mul(b_.AddScalar(Upcast(b_, pos_weight), -1), t);
      log_sigmoid = b_.Mul(log_sigmoid, b_.AddScalar(extra, 1));
    }
    return b_.Sub(b_.Mul(OneMinus(t), x), log_sigmoid);
  }
  ir::ValueId SquaredError(ir::ValueId x, ir::ValueId t) { return b_.Square(b_.Sub(x, t)); }
  ir::ValueId SoftMargin(ir::ValueId x, ir::ValueId t) {
    return Log1p(b_.Exp(b_.Neg(b_.Mul(t, x))));
  }

  // Derivatives with respect to x.
  ir::ValueId SquaredErrorSlope(ir::ValueId x, ir::ValueId t) {
    return b_.MulScalar(b_.Sub(x, t), 2);
  }
  ir::ValueId SmoothL1Slope(ir::ValueId x, ir::ValueId t) {
    const Attr beta = NumberOr(node_, "beta", 1);
    const ir::ValueId d = b_.Sub(x, t);
    return b_.Where(Compare("lt", Abs(d), beta), b_.DivScalar(d, beta), b_.Call("aten::sign", {d}));
  }
  ir::ValueId HuberSlope(ir::ValueId x, ir::ValueId t) {
    const Attr delta = NumberOr(node_, "delta", 1);
    const auto at_most = [&](ir::ValueId v) {
      return b_.Call("aten::clamp_max", {v}, {{"max", delta}});
    };
    return b_.Neg(at_most(b_.Neg(at_most(b_.Sub(x, t)))));
  }
  ir::ValueId CrossEntropySlope(ir::ValueId x, ir::ValueId t) {
    return b_.Div(b_.Sub(x, t), AtLeast(b_.Mul(OneMinus(x), x), 1e-12));
  }
  ir::ValueId SoftMarginSlope(ir::ValueId x, ir::ValueId t) {
    const ir::ValueId z = b_.Exp(b_.Neg(b_.Mul(t, x)));
    return b_.Neg(b_.Div(b_.Mul(t, z), b_.AddScalar(z, 1)));
  }

 private:
  Builder& b_;
  const ir::Node& node_;
};

// The loss of each element, or its derivative with respect to x.
using TermFn = ir::ValueId (*)(Terms&, ir::ValueId x, ir::ValueId t, Operands);

template <ir::ValueId (Terms::*Member)(ir::ValueId, ir::ValueId)>
ir::ValueId Term(Terms& terms, ir::ValueId x, ir::ValueId t, Operands) {
  return (terms.*Member)(x, t);
}
ir::ValueId TermOfLogits(Terms& terms, ir::ValueId x, ir::ValueId t, Operands operands) {
  return terms.CrossEntropyOfLogits(x, t, OptionalOperand(operands, 3));
}

// `v` in the type in which it is computed. A bool is a number beside `other`, although differences
// of bools are refused.
ir::ValueId AsNumber(Builder& b, ir::ValueId v, ir::ValueId other) {
  const DType dtype = b.type(v).dtype;
  return Upcast(b, dtype == DType::kBool ? b.Cast(v, b.type(other).dtype) : v);
}

// The op takes (x, t, weight?, …).
template <TermFn Loss>
ValuesOrStatus DecomposeLoss(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  Terms terms(b, node);
  const ir::ValueId x = AsNumber(b, operands[0], operands[1]);
  const ir::ValueId t = AsNumber(b, operands[1], operands[0]);
  ir::ValueId loss = Loss(terms, x, t, operands);
  const ir::ValueId weight = OptionalOperand(operands, 2);
  if (weight != ir::kNoValue) loss = b.Mul(loss, Upcast(b, weight));
  const int64_t reduction = node.attributes.GetIntOr("reduction", LossReduction::kMean);
  const int64_t count = b.type(loss).NumElements();
  if (reduction != LossReduction::kNone) loss = b.Sum(loss, {}, /*keepdim=*/false);
  if (reduction == LossReduction::kMean) loss = b.DivScalar(loss, static_cast<double>(count));
  return AsResultsOf(b, from, node, {loss});
}

// The op takes (grad, x, t, weight?).
template <TermFn Slope>
ValuesOrStatus DecomposeLossBackward(Builder& b, const ir::Graph& from, const ir::Node& node,
                                     Operands operands) {
  Terms terms(b, node);
  const ir::ValueId grad = Upcast(b, operands[0]);
  const ir::ValueId x = AsNumber(b, operands[1], operands[2]);
  const ir::ValueId t = AsNumber(b, operands[2], operands[1]);
  ir::ValueId slope = Slope(terms, x, t, operands);
  const ir::ValueId weight = OptionalOperand(operands, 3);
  if (weight != ir::kNoValue) slope = b.Mul(slope, Upcast(b, weight));
  if (node.attributes.GetIntOr("reduction", LossReduction::kMean) == LossReduction::kMean) {
    slope = b.DivScalar(slope, static_cast<double>(b.type(x).NumElements()));
  }
  return AsResultsOf(b, from, node, {b.Mul(slope, grad)});
}

template <TermFn Loss>
constexpr Row LossRule(absl::string_view op) {
  return Computed(op, LossFactors).DecomposesAlways(DecomposeLoss<Loss>).CannotFail();
}
template <TermFn Slope>
constexpr Row LossBackwardRule(absl::string_view op) {
  return Computed(op, BroadcastFactors).DecomposesAlways(DecomposeLossBackward<Slope>).CannotFail();
}

constexpr auto kLossRows = Rows(
    // Probabilities must lie between 0 and 1.
    LossRule<Term<&Terms::CrossEntropy>>("aten::binary_cross_entropy")
        .With(&OpFacts::fails, Failure::kOnValues),
    LossBackwardRule<Term<&Terms::CrossEntropySlope>>("aten::binary_cross_entropy_backward"),
    LossRule<TermOfLogits>("aten::binary_cross_entropy_with_logits"),
    LossRule<Term<&Terms::Huber>>("aten::huber_loss"),
    LossBackwardRule<Term<&Terms::HuberSlope>>("aten::huber_loss_backward"),
    LossRule<Term<&Terms::SquaredError>>("aten::mse_loss"),
    LossBackwardRule<Term<&Terms::SquaredErrorSlope>>("aten::mse_loss_backward"),
    LossRule<Term<&Terms::SmoothL1>>("aten::smooth_l1_loss"),
    LossBackwardRule<Term<&Terms::SmoothL1Slope>>("aten::smooth_l1_loss_backward"),
    LossRule<Term<&Terms::SoftMargin>>("aten::soft_margin_loss"),
    LossBackwardRule<Term<&Terms::SoftMarginSlope>>("aten::soft_margin_loss_backward"),
    Computed("aten::multi_margin_loss", MultiMarginFactors),
    Computed("aten::multi_margin_loss_backward", MultiMarginBackwardFactors),
    Computed("aten::multilabel_margin_loss_backward", MultilabelMarginBackwardFactors),
    Computed("aten::multilabel_margin_loss_forward", MultilabelMarginFactors),
    Einsum("spmd::ctc_loss", "[t] n [c], n [s], n, n -> n, n [t] [u]").Types(CtcLossTypes),
    Einsum("spmd::ctc_loss_backward", "n, [t] n [c], n [s], n, n, n, n [t] [u] -> [t] n [c]")
        .Each({0})
        .Types(CtcLossBackwardTypes));
static_assert(AreRowsOf(Family::kLoss, kLossRows), "see csrc/rules/families.h");

}  // namespace

absl::Span<const Row> LossRows() { return kLossRows; }

}  // namespace spmd::rules
