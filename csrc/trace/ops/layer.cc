// SPDX-License-Identifier: Apache-2.0
// Layers that PyTorch passes to private devices undecomposed: linear's gradient, attention, and the
// fused cells of recurrent networks (written in ATen ops, which come back to the boxed kernel).
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>

#include "csrc/trace/compat/keys.h"
#include "csrc/trace/dispatch/record_generic.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/run/read_host.h"
#include "csrc/trace/shape/cpu_forms.h"

namespace spmd::trace {

namespace {

TensorMeta MetaLike(const at::Tensor& t) {
  return TensorMeta::Contiguous(t.scalar_type(), t.sizes());
}

// A weight that is a vector occurs here in inference mode only, in which kernels above autograd are
// skipped (csrc/trace/pytorch/autograd_kernels.cc).
void Linear(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const at::Tensor weight = PeekArguments(op, stack)[1].toTensor();
  if (weight.dim() == 2) return RunGeneric(state, op, stack);
  const Args a = PopArguments(op, stack);
  const at::Tensor product = at::matmul(a[0].toTensor(), weight.t());
  stack->push_back(a[2].isNone() ? product : at::add(product, a[2].toTensor()));
}

// torch.jit.trace records _convolution, which PyTorch's own kernel calls.
void Convolution(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  if (!compat::TracerSeesOps()) return RunGeneric(state, op, stack);
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// The same with settings of GPUs' libraries.
void ConvolutionWithSettings(SessionState&, const OpInfo&, torch::jit::Stack* stack) {
  constexpr size_t kSettings = 4;
  const at::AutoDispatchBelowADInplaceOrView below;
  torch::jit::drop(*stack, kSettings);
  GetOp("aten::convolution").handle.callBoxed(stack);
}

// For the gradient of a matrix, which the CPU's product makes column by column.
TensorMeta ByColumns(const at::Tensor& t) {
  TensorMeta meta = MetaLike(t);
  meta.strides = {1, std::max<int64_t>(t.size(0), 1)};
  return meta;
}

bool IsByColumns(const at::Tensor& t) {
  return t.dim() == 2 && t.stride(0) == 1 && t.stride(1) == t.size(0);
}
bool IsByRows(const at::Tensor& t) {
  return t.dim() != 2 || (t.stride(1) == 1 && t.stride(0) == t.size(1));
}

void LinearBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor self = a[0].toTensor(), grad = a[1].toTensor(), weight = a[2].toTensor();
  const auto mask = a[3].toBoolList();
  at::Tensor dinput, dweight, dbias;
  const TapeId g = Read(state, grad);
  if (mask.get(0)) {
    dinput = NewTensor(
        state, IsByColumns(self) ? ByColumns(self) : MetaLike(self),
        EmitNamed(state, "spmd::linear_dinput", {g, Read(state, weight)}, {}, TypeOf(self)));
  }
  if (mask.get(1)) {
    dweight = NewTensor(
        state, IsByRows(weight) ? MetaLike(weight) : ByColumns(weight),
        EmitNamed(state, "spmd::linear_dweight", {g, Read(state, self)}, {}, TypeOf(weight)));
  }
  if (mask.get(2)) {
    std::vector<int64_t> dims(grad.dim() - 1);
    std::iota(dims.begin(), dims.end(), 0);
    const TensorMeta meta = TensorMeta::Contiguous(grad.scalar_type(), {grad.size(-1)});
    dbias = NewTensor(state, meta,
                      dims.empty() ? g
                                   : EmitNamed(state, "aten::sum.dim_IntList", {g}, {{"dim", dims}},
                                               TypeOf(meta)));
  }
  stack->push_back(dinput);
  stack->push_back(dweight);
  stack->push_back(dbias);
}

// True if the CPU would use its fused kernel, whose results have the memory order of queries and
// whose gradients are ordered by place, then head. Its other implementations return contiguous
// results.
bool IsFusedOnCpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto elements_lie_together = [](const at::Tensor& t) { return t.stride(3) == 1; };
  return elements_lie_together(q) && elements_lie_together(k) && elements_lie_together(v) &&
         q.size(3) == k.size(3) && k.size(3) == v.size(3);
}

TensorMeta ByPlaceThenHead(const at::Tensor& t) {
  TensorMeta meta = MetaLike(t);
  meta.strides[1] = t.size(3);
  meta.strides[2] = t.size(1) * t.size(3);
  return meta;
}

void Attention(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor q = a[0].toTensor(), k = a[1].toTensor(), v = a[2].toTensor();
  const at::Tensor mask = TensorOrUndefined(a[3]);
  TORCH_CHECK_NOT_IMPLEMENTED(
      a[4].toDouble() == 0 && q.dim() == 4,
      "torch_spmd: attention with dropout or without heads must be decomposed (SDPBackend.MATH)");
  TensorMeta out =
      TensorMeta::Contiguous(q.scalar_type(), {q.size(0), q.size(1), q.size(2), v.size(3)});
  if (IsFusedOnCpu(q, k, v)) out.strides = StridesInOrderOf(q);
  const at::ScalarType row_type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const TensorMeta lse = TensorMeta::Contiguous(row_type, {q.size(0), q.size(1), q.size(2)});
  const TapeId first =
      Emit(state, GetOp("spmd::attention"),
           {c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), a[5], a[7]},
           {Read(state, q), Read(state, k), Read(state, v), ReadOperand(state, mask)},
           {TypeOf(out), TypeOf(lse)});
  stack->push_back(NewTensor(state, out, first));
  stack->push_back(NewTensor(state, lse, first + 1));
  stack->push_back(at::Tensor());  // cumulative lengths: for nested tensors only
  stack->push_back(at::Tensor());
  stack->push_back(q.size(2));
  stack->push_back(k.size(2));
  stack->push_back(at::Tensor());  // no dropout, no random state
  stack->push_back(at::Tensor());
  stack->push_back(at::Tensor());
}

void AttentionBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const auto named = [&](const char* name) { return TensorOrUndefined(a[op.FindArg(name)]); };
  const at::Tensor q = named("query"), k = named("key"), v = named("value");
  const TensorType tq = TypeOf(q), tk = TypeOf(k), tv = TypeOf(v);
  const TapeId first =
      Emit(state, GetOp("spmd::attention_backward"),
           {c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(),
            c10::IValue(), c10::IValue(), a[op.FindArg("is_causal")], a[op.FindArg("scale")]},
           {Read(state, named("grad_out")), Read(state, q), Read(state, k), Read(state, v),
            Read(state, named("out")), Read(state, named("logsumexp")),
            ReadOperand(state, named("attn_bias"))},
           {tq, tk, tv});
  const auto form = IsFusedOnCpu(q, k, v) ? &ByPlaceThenHead : &MetaLike;
  stack->push_back(NewTensor(state, form(q), first));
  stack->push_back(NewTensor(state, form(k), first + 1));
  stack->push_back(NewTensor(state, form(v), first + 2));
  stack->push_back(at::Tensor());  // a bias that requires grad takes the math path
}

at::Tensor OneMinus(const at::Tensor& x) { return at::rsub(x, 1); }

at::Tensor AddAll(std::initializer_list<at::Tensor> terms) {
  at::Tensor sum;
  for (const at::Tensor& t : terms) {
    if (t.defined()) sum = sum.defined() ? at::add(sum, t) : t;
  }
  return sum;
}

void LstmCell(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor cx = a[2].toTensor();
  const at::Tensor gates =
      AddAll({a[0].toTensor(), a[1].toTensor(), TensorOrUndefined(a[3]), TensorOrUndefined(a[4])});
  const std::vector<at::Tensor> g = gates.split(gates.size(1) / 4, 1);
  const at::Tensor i = at::sigmoid(g[0]), f = at::sigmoid(g[1]), c = at::tanh(g[2]),
                   o = at::sigmoid(g[3]);
  const at::Tensor cy = at::add(at::mul(f, cx), at::mul(i, c));
  stack->push_back(at::mul(o, at::tanh(cy)));
  stack->push_back(cy);
  stack->push_back(at::cat({i, f, c, o}, 1));
}

void LstmCellBackward(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor cx = a[2].toTensor(), cy = a[3].toTensor(), workspace = a[4].toTensor();
  at::Tensor grad_hy = TensorOrUndefined(a[0]), grad_cy = TensorOrUndefined(a[1]);
  if (!grad_hy.defined() && !grad_cy.defined()) {
    for (int k = 0; k < 3; ++k) stack->push_back(at::Tensor());
    return;
  }
  if (!grad_hy.defined()) grad_hy = at::zeros_like(cx);
  const std::vector<at::Tensor> g = workspace.split(workspace.size(1) / 4, 1);
  const at::Tensor &i = g[0], &f = g[1], &c = g[2], &o = g[3];
  const at::Tensor t = at::tanh(cy);
  at::Tensor gc = at::mul(at::mul(grad_hy, o), OneMinus(at::mul(t, t)));
  if (grad_cy.defined()) gc = at::add(gc, grad_cy);
  const auto through_sigmoid = [](const at::Tensor& grad, const at::Tensor& y) {
    return at::mul(grad, at::mul(y, OneMinus(y)));
  };
  const at::Tensor gates = at::cat(
      {through_sigmoid(at::mul(gc, c), i), through_sigmoid(at::mul(gc, cx), f),
       at::mul(at::mul(gc, i), OneMinus(at::mul(c, c))), through_sigmoid(at::mul(grad_hy, t), o)},
      1);
  stack->push_back(gates);
  stack->push_back(at::mul(gc, f));
  stack->push_back(a[5].toBool() ? at::sum(gates, {0}) : at::Tensor());
}

void GruCell(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor hx = a[2].toTensor();
  const at::Tensor input = AddAll({a[0].toTensor(), TensorOrUndefined(a[3])});
  const at::Tensor hidden = AddAll({a[1].toTensor(), TensorOrUndefined(a[4])});
  const int64_t n = hx.size(1);
  const std::vector<at::Tensor> x = input.split(n, 1), h = hidden.split(n, 1);
  const at::Tensor r = at::sigmoid(at::add(x[0], h[0])), z = at::sigmoid(at::add(x[1], h[1]));
  const at::Tensor new_gate = at::tanh(at::add(x[2], at::mul(r, h[2])));
  stack->push_back(at::add(new_gate, at::mul(z, at::sub(hx, new_gate))));
  stack->push_back(at::cat({r, z, new_gate, hx, h[2]}, 1));
}

void GruCellBackward(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor grad = a[0].toTensor(), workspace = a[1].toTensor();
  const std::vector<at::Tensor> w = workspace.split(workspace.size(1) / 5, 1);
  const at::Tensor &r = w[0], &z = w[1], &n = w[2], &hx = w[3], &hn = w[4];
  const at::Tensor gz = at::mul(at::mul(grad, at::sub(hx, n)), at::mul(OneMinus(z), z));
  const at::Tensor gn = at::mul(at::mul(grad, OneMinus(z)), OneMinus(at::mul(n, n)));
  const at::Tensor gr = at::mul(at::mul(gn, hn), at::mul(OneMinus(r), r));
  const at::Tensor input = at::cat({gr, gz, gn}, 1);
  const at::Tensor hidden = at::cat({gr, gz, at::mul(gn, r)}, 1);
  stack->push_back(input);
  stack->push_back(hidden);
  stack->push_back(at::mul(grad, z));
  const bool has_bias = a[2].toBool();
  stack->push_back(has_bias ? at::sum(input, {0}) : at::Tensor());
  stack->push_back(has_bias ? at::sum(hidden, {0}) : at::Tensor());
}

// A failure is raised at the op's line, as in eager; reading it runs what is pending.
void CheckErrors(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PopArguments(op, stack);
  const at::Tensor info = ReadHost(state, a[0].toTensor(), op.name.c_str());
  at::_linalg_check_errors(info, a[1].toStringView(), a[2].toBool());
}

void AllClose(SessionState&, const OpInfo& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const Args a = PopArguments(op, stack);
  const at::Tensor close = at::isclose(a[0].toTensor(), a[1].toTensor(), a[2].toDouble(),
                                       a[3].toDouble(), a[4].toBool());
  stack->push_back(close.all().item<bool>());
}

constexpr HandlerRow kLayerHandlers[] = {
    {"aten::_convolution", &ConvolutionWithSettings, kReplayable},
    {"aten::_linalg_check_errors", &CheckErrors},
    {"aten::_scaled_dot_product_fused_attention_overrideable", &Attention, kReplayable},
    {"aten::_scaled_dot_product_fused_attention_overrideable_backward", &AttentionBackward,
     kReplayable},
    {"aten::_thnn_fused_gru_cell", &GruCell, kReplayable},
    {"aten::_thnn_fused_gru_cell_backward", &GruCellBackward, kReplayable},
    {"aten::_thnn_fused_lstm_cell", &LstmCell, kReplayable},
    {"aten::_thnn_fused_lstm_cell_backward_impl", &LstmCellBackward, kReplayable},
    {"aten::allclose", &AllClose},
    {"aten::convolution", &Convolution, kReplayable},
    {"aten::linear", &Linear, kReplayable},
    {"aten::linear_backward", &LinearBackward, kReplayable},
};
static_assert(IsSortedAndUnique(kLayerHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> LayerHandlers() { return kLayerHandlers; }

}  // namespace spmd::trace
