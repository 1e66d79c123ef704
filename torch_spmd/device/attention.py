# SPDX-License-Identifier: Apache-2.0
"""Fused attention under vmap: PyTorch has no batching rule for the op that the device computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torch_spmd._compat import functorch as _functorch

_OP = "_scaled_dot_product_fused_attention_overrideable"
_library = torch.library.Library("aten", "IMPL")


def _merged(info: Any, t: Tensor | None, in_dim: int | None) -> Tensor | None:
    """[batch, …] with the dimension of vmap merged into the first one."""
    if t is None:
        return None
    t = t.expand(info.batch_size, *t.shape) if in_dim is None else t.movedim(in_dim, 0)
    return t.flatten(0, 1)


def _merged_bias(info: Any, t: Tensor | None, in_dim: int | None, batch: int) -> Tensor | None:
    """The same for a mask, which is broadcast to [batch, heads, length, length of keys]."""
    if t is None or (in_dim is None and (t.dim() < 4 or t.shape[0] == 1)):
        return t
    lead = 0 if in_dim is None else 1
    t = t if in_dim is None else t.movedim(in_dim, 0)
    t = t.reshape(*t.shape[:lead], *(1,) * (4 + lead - t.dim()), *t.shape[lead:])
    t = t.expand(*t.shape[:lead], batch, *t.shape[lead + 1 :])
    return _merged(info, t, None if in_dim is None else 0)


def _apart(info: Any, results: tuple[Any, ...]) -> tuple[Any, tuple[int | None, ...]]:
    """The results with the dimension of vmap as their first one again."""
    size = info.batch_size
    tensors = tuple(
        t.unflatten(0, (size, t.shape[0] // size)) if isinstance(t, Tensor) else t for t in results
    )
    return tensors, tuple(0 if isinstance(t, Tensor) else None for t in tensors)


def _batched(
    info: Any,
    in_dims: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    *rest: Any,
    **scale: Any,
) -> Any:
    merged = [_merged(info, t, d) for t, d in zip((query, key, value), in_dims)]
    assert merged[0] is not None
    bias_dim = in_dims[3] if len(in_dims) > 3 else None
    bias = _merged_bias(info, bias, bias_dim, merged[0].shape[0] // info.batch_size)
    return _apart(info, _attention(merged, bias, *rest, **scale))


def _with_values(t: Tensor | None) -> Iterator[Tensor]:
    """The tensor, and what it is at the levels of torch.func below."""
    while t is not None:
        yield t
        t = _functorch.get_unwrapped(t) if _functorch.is_functorch_wrapped_tensor(t) else None


def _requires_grad(t: Tensor | None) -> bool:
    return any(value.requires_grad for value in _with_values(t))


def _has_tangent(t: Tensor | None) -> bool:
    return any(forward_ad.unpack_dual(v).tangent is not None for v in _with_values(t))


def _attention(
    operands: list[Any],
    bias: Tensor | None,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """What the op computes; by the formula where it has no derivative, as PyTorch would have chosen
    if shards told that a mask requires a gradient, or that an operand has a tangent."""
    query, key, _ = operands
    rest = (bias, dropout, causal)
    if not _requires_grad(bias) and not any(map(_has_tangent, (*operands, bias))):
        fused = getattr(torch.ops.aten, _OP)
        results: tuple[Any, ...] = fused(*operands, *rest, debug, scale=scale)
        return results
    shared = query.shape[1] != key.shape[1]
    result = torch.ops.aten._scaled_dot_product_attention_math(
        *operands, *rest, scale=scale, enable_gqa=shared
    )[0]
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1) if shared else key
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    sizes = query.shape[2], key.shape[2]
    return result, scores.to(dtype).logsumexp(-1), None, None, *sizes, None, None, None


def _batched_backward(info: Any, in_dims: Any, *args: Any, **scale: Any) -> Any:
    batch = args[1].shape[0 if in_dims[1] != 0 else 1]
    merged = [
        _merged(info, arg, d) if isinstance(arg, Tensor) else arg for arg, d in zip(args, in_dims)
    ]
    merged[4] = _merged_bias(info, args[4], in_dims[4], batch)
    return _apart(info, getattr(torch.ops.aten, f"{_OP}_backward")(*merged, **scale))


def install() -> None:
    torch.library.register_vmap(f"aten::{_OP}", _batched, lib=_library)
    torch.library.register_vmap(f"aten::{_OP}_backward", _batched_backward, lib=_library)
