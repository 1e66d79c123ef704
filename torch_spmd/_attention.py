# SPDX-License-Identifier: Apache-2.0
"""Fused attention under vmap: PyTorch has no batching rule for the op that the device computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    return _apart(info, getattr(torch.ops.aten, _OP)(*merged, bias, *rest, **scale))


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
