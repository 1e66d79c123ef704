// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers, parameter by parameter. Fused Adam in its common form uses PyTorch's own
// kernel. All other fused optimizers become element-wise ops with the arithmetic of PyTorch's
// kernels; the learning rate may then be a run-time scalar or a tensor, since it is only multiplied
// by. Adam on lists becomes the element-wise ops that PyTorch calls on the lists.
#include <cmath>
#include <utility>

#include "csrc/rules/tables/decompositions.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// The operands of an optimizer's step: Tensor[] lists with one entry per parameter (some are
// empty), then the optional tensors, which only fused ops have. The results are lists in the same
// order.
class Step {
 public:
  Step(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands, int lists)
      : b_(b), node_(node), operands_(operands) {
    SPMD_REQUIRE(static_cast<int>(node.groups.size()) == lists, node.op, " has ",
                 node.groups.size(), " Tensor[] arguments; expected ", lists);
    tail_ = node.groups.back().begin + node.groups.back().size;
    if (node.attributes.Find("lr") == nullptr) lr_ = OptionalOperand(operands_, tail_++);
    grad_scale_ = OptionalOperand(operands_, tail_);
    found_inf_ = OptionalOperand(operands_, tail_ + 1);
  }

  int size() const { return node_.groups[0].size; }
  bool Has(int list) const { return node_.groups[list].size > 0; }
  // Requires: i >= 0. Throws if the list is shorter.
  ir::ValueId At(int list, int i) const {
    const ir::OperandGroup& group = node_.groups[list];
    SPMD_REQUIRE(i < group.size, "list ", list, " has ", group.size, " tensors for ", size(),
                 " parameters");
    return operands_[group.begin + i];
  }
  // In the type that PyTorch's kernels compute in.
  ir::ValueId Wide(int list, int i) const { return Upcast(b_, At(list, i)); }
  // True only if the number is known to be 0, so that its summand can be left out.
  bool IsZero(absl::string_view name) const { return Known(Given(name)) == 0.0; }
  bool Flag(absl::string_view name) const { return node_.attributes.GetBoolOr(name, false); }

  // True if no tensor scales the step or decides whether it is taken.
  bool IsUnscaled() const {
    return lr_ == ir::kNoValue && grad_scale_ == ir::kNoValue && found_inf_ == ir::kNoValue;
  }
  // The attribute as it was given, which may be a run-time scalar.
  const Attr& Given(absl::string_view name) const {
    const Attr* attr = node_.attributes.Find(name);
    SPMD_REQUIRE(attr != nullptr, node_.op, " has no ", name);
    return *attr;
  }
  // v · lr
  ir::ValueId TimesRate(ir::ValueId v) {
    if (lr_ != ir::kNoValue) return b_.Mul(v, lr_);
    return b_.Call("aten::mul.Scalar", {v}, {{"other", Given("lr")}});
  }
  ir::ValueId Gradient(int i) {
    const ir::ValueId grad = Upcast(b_, Unscaled(i));
    return Flag("maximize") ? b_.Neg(grad) : grad;
  }
  // Entry i of the gradients as the kernel leaves them.
  ir::ValueId Unscaled(int i) {
    const ir::ValueId grad = At(1, i);
    if (grad_scale_ == ir::kNoValue) return grad;
    return b_.Cast(b_.Div(grad, grad_scale_), b_.type(grad).dtype);
  }
  // `updated`, or `old` in a step that found a gradient that is not finite.
  ir::ValueId Unless(ir::ValueId updated, ir::ValueId old) {
    updated = b_.Cast(updated, b_.type(old).dtype);
    if (found_inf_ == ir::kNoValue) return updated;
    return b_.Where(b_.Call("aten::eq.Scalar", {found_inf_}, {{"other", 1.0}}), old, updated);
  }
  // 1 - base^step in double precision, which the difference of numbers near 1 needs.
  ir::ValueId BiasCorrection(const Attr& base, ir::ValueId step) {
    const ir::ValueId power =
        b_.Call("aten::pow.Scalar", {b_.Cast(step, DType::kF64)}, {{"self", base}});
    return b_.AddScalar(b_.Neg(power), 1);
  }

 private:
  Builder& b_;
  const ir::Node& node_;
  Operands operands_;
  int tail_;
  ir::ValueId lr_ = ir::kNoValue, grad_scale_ = ir::kNoValue, found_inf_ = ir::kNoValue;
};

// True if PyTorch's kernel can take parameter i: all tensors have one element type and one shape.
bool IsUniform(const Builder& b, const Step& op, int i) {
  const TensorType& param = b.type(op.At(0, i));
  const TensorType& step = b.type(op.At(5, i));
  return IsFloating(param.dtype) && b.type(op.At(1, i)) == param && b.type(op.At(2, i)) == param &&
         b.type(op.At(3, i)) == param && step.rank() == 0 && step.dtype == DType::kF32;
}

// The results of all lists, in order.
Values Flatten(const std::vector<Values>& lists) {
  Values all;
  for (const Values& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Lists: params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps. The weight decay is
// part of the gradient or, if it is `decoupled`, taken off the parameter.
ValuesOrStatus Adam(Builder& b, const ir::Graph& from, const ir::Node& node, Operands operands,
                    bool decoupled) {
  Step op(b, from, node, operands, /*lists=*/6);
  const Attr &beta1 = op.Given("beta1"), &beta2 = op.Given("beta2"), &eps = op.Given("eps");
  const Attr& decay = op.Given("weight_decay");
  const bool decays = !op.IsZero("weight_decay");
  // The weights of the new gradient and of its square in the averages. They are created once, when
  // first needed.
  ir::ValueId first_weight = ir::kNoValue, second_weight = ir::kNoValue;
  std::vector<Values> out(5);
  for (int i = 0; i < op.size(); ++i) {
    const ir::ValueId old = op.At(0, i), step = op.At(5, i);
    if (op.IsUnscaled() && !op.Flag("amsgrad") && IsUniform(b, op, i)) {
      const Values stepped =
          b.CallAll("spmd::adam", {old, op.At(1, i), op.At(2, i), op.At(3, i), step},
                    {{"lr", op.Given("lr")},
                     {"beta1", beta1},
                     {"beta2", beta2},
                     {"weight_decay", decay},
                     {"eps", eps},
                     {"decoupled", decoupled},
                     {"maximize", op.Flag("maximize")}});
      out[0].push_back(stepped[0]);
      out[1].push_back(op.At(1, i));
      out[2].push_back(stepped[1]);
      out[3].push_back(stepped[2]);
      if (op.Has(4)) out[4].push_back(op.At(4, i));
      continue;
    }
    ir::ValueId param = op.Wide(0, i), grad = op.Gradient(i);
    if (decays && decoupled) param = b.Sub(param, b.MulScalar(op.TimesRate(param), decay));
    if (decays && !decoupled) grad = b.Add(grad, b.MulScalar(param, decay));
    if (first_weight == ir::kNoValue) {
      first_weight = b.OneMinus(beta1);
      second_weight = b.OneMinus(beta2);
    }
    const ir::ValueId avg = b.Call("aten::lerp.Tensor",
                                   {op.Wide(2, i), grad, b.Cast(first_weight, b.type(grad).dtype)});
    const ir::ValueId square =
        b.Add(b.MulScalar(op.Wide(3, i), beta2), b.Mul(b.Square(grad), second_weight));
    ir::ValueId top = square;
    if (op.Flag("amsgrad")) {
      top = b.Call("aten::maximum", {op.Wide(4, i), square});
      out[4].push_back(op.Unless(top, op.At(4, i)));
    } else if (op.Has(4)) {
      out[4].push_back(op.At(4, i));
    }
    const ir::ValueId deviation = b.Div(b.Sqrt(top), b.Sqrt(op.BiasCorrection(beta2, step)));
    const ir::ValueId move =
        b.Div(b.Div(avg, b.AddScalar(deviation, eps)), op.BiasCorrection(beta1, step));
    out[0].push_back(op.Unless(b.Sub(param, op.TimesRate(move)), old));
    out[1].push_back(op.Unless(op.Unscaled(i), op.At(1, i)));
    out[2].push_back(op.Unless(avg, op.At(2, i)));
    out[3].push_back(op.Unless(square, op.At(3, i)));
  }
  return Flatten(out);
}

}  // namespace

ValuesOrStatus DecomposeAdam(Builder& b, const ir::Graph& from, const ir::Node& node,
                             Operands operands) {
  return Adam(b, from, node, operands, /*decoupled=*/false);
}
ValuesOrStatus DecomposeAdamW(Builder& b, const ir::Graph& from, const ir::Node& node,
                              Operands operands) {
  return Adam(b, from, node, operands, /*decoupled=*/true);
}

// Lists: params, grads, momentum buffers (none without momentum).
ValuesOrStatus DecomposeSgd(Builder& b, const ir::Graph& from, const ir::Node& node,
                            Operands operands) {
  Step op(b, from, node, operands, /*lists=*/3);
  const Attr &decay = op.Given("weight_decay"), &momentum = op.Given("momentum");
  const bool decays = !op.IsZero("weight_decay");
  std::vector<Values> out(3);
  for (int i = 0; i < op.size(); ++i) {
    const ir::ValueId param = op.Wide(0, i);
    ir::ValueId move = op.Gradient(i);
    if (decays) move = b.Add(move, b.MulScalar(param, decay));
    if (!op.IsZero("momentum")) {
      ir::ValueId buffer = move;
      if (!op.Flag("is_first_step")) {
        const ir::ValueId added =
            op.IsZero("dampening") ? move : b.Mul(move, b.OneMinus(op.Given("dampening")));
        buffer = b.Add(b.MulScalar(op.Wide(2, i), momentum), added);
      }
      out[2].push_back(op.Unless(buffer, op.At(2, i)));
      move = op.Flag("nesterov") ? b.Add(move, b.MulScalar(buffer, momentum)) : buffer;
    } else if (op.Has(2)) {
      out[2].push_back(op.At(2, i));
    }
    out[0].push_back(op.Unless(b.Sub(param, op.TimesRate(move)), op.At(0, i)));
    out[1].push_back(op.Unless(op.Unscaled(i), op.At(1, i)));
  }
  return Flatten(out);
}

// Lists: params, grads, state_sums, state_steps.
ValuesOrStatus DecomposeAdagrad(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  Step op(b, from, node, operands, /*lists=*/4);
  const Attr &decay = op.Given("weight_decay"), &eps = op.Given("eps");
  const bool decays = !op.IsZero("weight_decay");
  std::vector<Values> out(4);
  for (int i = 0; i < op.size(); ++i) {
    const ir::ValueId param = op.Wide(0, i);
    ir::ValueId grad = op.Gradient(i);
    if (decays) grad = b.Add(grad, b.MulScalar(param, decay));
    const ir::ValueId sum = b.Add(op.Wide(2, i), b.Square(grad));
    const ir::ValueId later = b.AddScalar(op.At(3, i), -1);
    const ir::ValueId slower = b.AddScalar(b.MulScalar(later, op.Given("lr_decay")), 1);
    const ir::ValueId move = b.Div(b.Div(grad, b.AddScalar(b.Sqrt(sum), eps)), slower);
    out[0].push_back(op.Unless(b.Sub(param, op.TimesRate(move)), op.At(0, i)));
    out[1].push_back(op.Unless(op.Unscaled(i), op.At(1, i)));
    out[2].push_back(op.Unless(sum, op.At(2, i)));
    out[3].push_back(op.At(3, i));
  }
  if (node.num_results == static_cast<int>(3 * out[0].size())) out.pop_back();  // .tensor_lr
  return Flatten(out);
}

// Operands: gradients, found_inf, inv_scale.
ValuesOrStatus DecomposeUnscale(Builder& b, const ir::Graph& from, const ir::Node& node,
                                Operands operands) {
  const int count = node.groups[0].size;
  ir::ValueId found = operands[count];
  const ir::ValueId inv_scale = operands[count + 1];
  Values out;
  for (int i = 0; i < count; ++i) {
    const ir::ValueId grad = operands[node.groups[0].begin + i];
    const ir::ValueId bad = b.Call("aten::logical_not", {b.Call("aten::isfinite", {grad})});
    const ir::ValueId any = b.Call("aten::any", {bad});
    found = b.Call("aten::maximum", {found, b.Cast(any, b.type(found).dtype)});
    out.push_back(b.Cast(b.Mul(grad, inv_scale), b.type(grad).dtype));
  }
  out.push_back(found);
  return out;
}

}  // namespace spmd::rules
