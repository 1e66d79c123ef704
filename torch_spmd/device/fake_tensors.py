# SPDX-License-Identifier: Apache-2.0
"""Makes FakeTensor predict the strides that the device's results have.

Results have the strides that the CPU's kernels give (csrc/trace/shape/cpu_forms.h). FakeTensor asks
Meta kernels, which describe another device's kernels where these differ, or lose strides on the
way. Compiled code relies on what FakeTensor predicts, so both must agree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_spmd._compat import (
    DISPATCH_OF_FAKES,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    compute_elementwise_output_strides,
    in_kernel_invocation_manager,
    meta_registrations,
    pytree,
    suggest_memory_format,
)
from torch_spmd._replace import replace

aten = torch.ops.aten

DEVICE = "spmd"

Args = tuple[Any, ...]
Strides = Sequence[int]
Rule = Callable[[FakeTensorMode, OpOverload, Args, dict[str, Any]], Any]


def install() -> None:
    """Called once, when the device is registered."""
    _hint_at_the_cpu()
    _ask_rules_first()


def _hint_at_the_cpu() -> None:
    """Makes Meta kernels that ask for the device answer for the CPU if it is ours; where GPUs run
    the ops, for them."""
    from torch_spmd import _C

    hint = meta_registrations.device_hint

    def device_hint(tensor: Any) -> str:
        answer = hint(tensor)
        # For a Meta tensor PyTorch assumes CUDA; the device's own inference uses Meta tensors.
        if answer == DEVICE:
            return "cuda" if _C.gpus_run_ops() else "cpu"
        return "cpu" if answer == "cuda" and _C.meta_answers_for_cpu() else answer

    why = "FakeTensor predicts the strides that results have"
    replace(meta_registrations, "device_hint", device_hint, why)


def _ask_rules_first() -> None:
    """Runs before decompositions, which FakeTensor prefers to what is registered for an op."""
    from torch_spmd import _C

    dispatch = DISPATCH_OF_FAKES.current()

    @functools.wraps(dispatch)
    def with_rules(
        self: FakeTensorMode, func: OpOverload, types: Any, args: Args, kwargs: dict[str, Any]
    ) -> Any:
        rule = _RULES.get(func)
        if rule is not None and not _C.gpus_run_ops() and _are_ours(args, kwargs):
            return rule(self, func, args, kwargs)
        return dispatch(self, func, types, args, kwargs)

    why = "FakeTensor predicts the strides that results have"
    replace(*DISPATCH_OF_FAKES, with_rules, why)


def _are_ours(args: Args, kwargs: dict[str, Any]) -> bool:
    tensors = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
    fakes = [t for t in tensors if type(t) is FakeTensor]
    return len(fakes) == len(tensors) and any(t.fake_device.type == DEVICE for t in fakes)


def _moved(mode: FakeTensorMode, tree: Any, device: torch.device) -> Any:
    """FakeTensors of another device with the same metadata."""

    def move(t: FakeTensor) -> FakeTensor:
        with in_kernel_invocation_manager(mode):
            meta = t.detach()
        return FakeTensor(mode, meta, device)

    return pytree.tree_map_only(FakeTensor, move, tree)


def _ours(mode: FakeTensorMode, meta: Tensor, strides: Strides) -> FakeTensor:
    """A FakeTensor of the device like `meta`, with other strides."""
    with in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(meta.shape, strides, dtype=meta.dtype, device="meta")
    return FakeTensor(mode, meta, torch.device(DEVICE, 0))


def _as_on_cpu(strides_of: Callable[[Tensor, Args], Strides | None] | None = None) -> Rule:
    """What FakeTensor predicts for the CPU, with other strides of the first result."""

    def rule(mode: FakeTensorMode, func: OpOverload, args: Args, kwargs: dict[str, Any]) -> Any:
        args, kwargs = _moved(mode, (args, kwargs), torch.device("cpu"))
        with mode:
            results = func(*args, **kwargs)
            first = results if isinstance(results, Tensor) else results[0]
            strides = None if strides_of is None else strides_of(first, args)
        ours = _moved(mode, results, torch.device(DEVICE, 0))
        if strides is None:
            return ours
        corrected = _ours(mode, first, strides)
        return corrected if isinstance(results, Tensor) else (corrected, *ours[1:])

    return rule


def _format(result: Tensor, memory_format: torch.memory_format) -> Strides:
    return torch.empty(result.shape, device="meta", memory_format=memory_format).stride()


def _contiguous(result: Tensor, args: Args) -> Strides:
    return _format(result, torch.contiguous_format)


def _format_of_first(result: Tensor, args: Args) -> Strides:
    """Channels last if the first argument is."""
    return _format(result, suggest_memory_format(args[0]))


def _format_of_second(result: Tensor, args: Args) -> Strides:
    """The same for a gradient, whose second argument is the tensor of which it is the gradient."""
    return _format(result, suggest_memory_format(args[1]))


def _order_of_first(result: Tensor, args: Args) -> Strides | None:
    if args[0].shape != result.shape:
        return None
    return tuple(compute_elementwise_output_strides(args[0]))


def _columns(result: Tensor, args: Args) -> Strides | None:
    """Column-major strides."""
    return (*_contiguous(result, args)[:-2], 1, max(result.shape[-2], 1))


def _iterator_of_two(result: Tensor, args: Args) -> Strides | None:
    """The strides that TensorIterator gives; Meta's decomposition forgets what was expanded."""
    if not isinstance(args[1], Tensor):
        return None
    a, b = torch.broadcast_tensors(args[0], args[1])
    return tuple(compute_elementwise_output_strides(a, b)) if a.shape == result.shape else None


# --- attention: csrc/trace/ops/layer.cc ---


def _is_fused_on_cpu(q: Tensor, k: Tensor, v: Tensor) -> bool:
    together = all(t.stride(3) == 1 for t in (q, k, v))
    return together and q.shape[3] == k.shape[3] == v.shape[3]


def _attention(mode: FakeTensorMode, func: OpOverload, args: Args, kwargs: dict[str, Any]) -> Any:
    q, k, v = args[:3]
    with mode:
        row_type = torch.float64 if q.dtype == torch.float64 else torch.float32
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        rows = q.new_empty(q.shape[:3], dtype=row_type)
        if _is_fused_on_cpu(q, k, v):
            out = _ours(mode, out, tuple(compute_elementwise_output_strides(q)))
    return (out, rows, None, None, q.shape[2], k.shape[2], None, None, None)


def _attention_backward(
    mode: FakeTensorMode, func: OpOverload, args: Args, kwargs: dict[str, Any]
) -> Any:
    tensors = args[1:4]
    by_place = _is_fused_on_cpu(*tensors)
    grads = []
    for t in tensors:
        with mode:
            grad = t.new_empty(t.shape)
        if by_place:
            _, heads, places, size = t.shape
            grad = _ours(mode, grad, (places * heads * size, size, heads * size, 1))
        grads.append(grad)
    return (*grads, None)


# --- linear: csrc/trace/ops/layer.cc ---


def _linear_backward(
    mode: FakeTensorMode, func: OpOverload, args: Args, kwargs: dict[str, Any]
) -> Any:
    x, grad, weight, mask = args
    by_columns = (
        x.dim() == 2 and x.stride() == (1, x.shape[0]),
        weight.stride() != (weight.shape[1], 1),
        False,
    )
    grads: list[Tensor | None] = []
    for wanted, like, columns in zip(mask, (x, weight, grad), by_columns, strict=True):
        if not wanted:
            grads.append(None)
            continue
        with mode:
            made = like.new_empty(like.shape[-1:] if like is grad else like.shape)
        grads.append(_ours(mode, made, (1, like.shape[0])) if columns else made)
    return tuple(grads)


_RULES: dict[OpOverload, Rule] = {
    aten.linear_backward.default: _linear_backward,
    aten._scaled_dot_product_fused_attention_overrideable.default: _attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _attention_backward,
    aten.convolution.default: _as_on_cpu(),
    aten.convolution_backward.default: _as_on_cpu(),
}
for _strides, _ops in (
    (
        _iterator_of_two,
        (
            aten.complex.default,
            aten.copysign.Tensor,
            aten.div.Tensor_mode,
            aten.floor_divide.default,
            aten.heaviside.default,
            aten.logaddexp.default,
            aten.logaddexp2.default,
            aten.logical_and.default,
            aten.logical_or.default,
            aten.logical_xor.default,
            aten.native_dropout_backward.default,
            aten.polar.default,
            aten.special_xlog1py.default,
            aten.xlogy.Tensor,
        ),
    ),
    (
        _format_of_first,
        (
            aten._batch_norm_no_update.default,
            aten._batch_norm_with_update.default,
            aten._batch_norm_with_update_functional.default,
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_functional.default,
            aten._native_batch_norm_legit_no_training.default,
            aten.channel_shuffle.default,
            aten.max_unpool2d.default,
            aten.native_batch_norm.default,
            aten.reflection_pad3d.default,
            aten.replication_pad3d.default,
            aten.roll.default,
        ),
    ),
    (
        _contiguous,
        (
            aten._log_softmax_backward_data.default,
            aten._softmax_backward_data.default,
            aten.glu_backward.default,
            aten.huber_loss_backward.default,
            aten.log_sigmoid_forward.default,
            aten.mse_loss_backward.default,
            aten.normal.Tensor_Tensor,
            aten.normal.Tensor_float,
            aten.normal.float_Tensor,
            aten.poisson.default,
            aten.rrelu_with_noise.default,
            aten.rrelu_with_noise_functional.default,
            aten.smooth_l1_loss_backward.default,
        ),
    ),
    (_order_of_first, (aten.binary_cross_entropy.default, aten.huber_loss.default)),
    (
        _format_of_second,
        (
            aten.reflection_pad2d_backward.default,
            aten.reflection_pad3d_backward.default,
            aten.replication_pad2d_backward.default,
            aten.replication_pad3d_backward.default,
        ),
    ),
    (_columns, (aten.geqrf.default,)),
):
    for _op in _ops:
        _RULES[_op] = _as_on_cpu(_strides)
