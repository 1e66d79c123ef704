# SPDX-License-Identifier: Apache-2.0
"""What the attention kernels of torch_xla compute, by ops whose sharding the compiler knows: no
kernel is called by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torch_spmd.torch_xla.distributed.spmd import mesh as meshes
from torch_spmd.torch_xla.distributed.spmd import xla_sharding

# What the logit of a pair that is masked becomes: a row of which all are masked is an average.
MASKED = -0.7 * float(torch.finfo(torch.float32).max)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float = 1.0,
    segments: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """(batch, heads, length, width) each; of k and v there may be fewer heads, each for as many
    neighbouring heads of q. The logits are `scale * (q @ k.T + bias)`, then
    `soft_cap * tanh(logits / soft_cap)`. Masked are pairs whose key comes later (`causal`), by more
    than `window` earlier or later, or is of another segment.

    Errors: ValueError for a number of heads of q that those of k and v do not divide.
    """
    k, v = (_for_heads_of(q, t) for t in (k, v))
    if soft_cap is None and segments is None and bias is None and window is None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    seen = _seen(q, k, causal, segments, window)
    if soft_cap is None:
        added = None if bias is None else scale * bias.to(q.dtype)
        if seen is not None:
            lowest = max(MASKED, torch.finfo(q.dtype).min)
            zero = torch.zeros((), dtype=q.dtype, device=q.device)
            added = torch.where(seen, zero if added is None else added, lowest)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
    logits = (q @ k.transpose(-2, -1)).float()
    logits = scale * (logits if bias is None else logits + bias)
    logits = soft_cap * torch.tanh(logits / soft_cap)
    if seen is not None:
        logits = torch.where(seen, logits, MASKED)
    return logits.softmax(dim=-1).to(v.dtype) @ v


def _for_heads_of(q: Tensor, t: Tensor) -> Tensor:
    batch, heads, length, width = t.shape
    if q.shape[1] == heads:
        return t
    if q.shape[1] % heads:
        raise ValueError(
            f"attention: q has {q.shape[1]} heads, k and v have {heads}, which does not divide them"
        )
    each = t.unsqueeze(2).expand(batch, heads, q.shape[1] // heads, length, width)
    return each.reshape(batch, q.shape[1], length, width)


def _seen(
    q: Tensor, k: Tensor, causal: bool, segments: tuple[Tensor, Tensor] | None, window: int | None
) -> Tensor | None:
    """The pairs that are not masked, in a form that broadcasts to (batch, heads, q, k)."""
    later = torch.arange(k.shape[-2], device=q.device) - torch.arange(
        q.shape[-2], device=q.device
    ).unsqueeze(-1)
    parts = []
    if causal:
        parts.append(later <= 0)
    if window is not None:
        parts.append(later.abs() <= window)
    if segments is not None:
        of_q, of_k = segments
        parts.append((of_q.unsqueeze(-1) == of_k.unsqueeze(-2)).unsqueeze(1))
    if not parts:
        return None
    seen = parts[0]
    for part in parts[1:]:
        seen = seen & part
    return seen


def sharded(tensors: tuple[Tensor, ...], partition_spec: Any, mesh: Any) -> tuple[Tensor, ...]:
    """The tensors with a spec, which their gradients get as well; as they are if there is none.

    Errors: ValueError for a spec without a mesh where no global one is set.
    """
    if partition_spec is None:
        return tensors
    mesh = mesh or meshes.get_global_mesh()
    if mesh is None:
        raise ValueError("mesh must be specified or set using set_global_mesh")
    mark = xla_sharding.mark_sharding_with_gradients
    return tuple(mark(t, mesh, partition_spec) for t in tensors)
