# SPDX-License-Identifier: Apache-2.0
"""Attention over a sequence that is sharded: keys and values go once around a ring of devices.

Each device keeps its queries. In each of as many steps as there are devices it attends to the keys
and values that it has, adds the result to what it has of the softmax so far, and passes the keys
and values on to the next device. Backwards they go around once more, together with their
gradients, so that no device ever holds more than its own part and one block of scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _arguments
from torch_spmd.nn.ring_steps import (
    How,
    RingAttention,
)
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.mesh import Mesh, checked_axis


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mesh: Mesh | None = None,
    axis: str = "context",
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    segment_ids: Tensor | None = None,
    zigzag: bool = False,
    key_block: int | None = None,
) -> Tensor:
    """Scaled dot product attention whose sequence is sharded over `axis`. It is exact: the values
    and the gradients are those of attention over the whole sequence.

    With n devices along the axis, the forward pass sends n - 1 times the keys and values of one
    shard; the backward pass sends them as often again, and n times their gradients. Other
    dimensions stay sharded as they are, batch and heads for instance.

    Scores, sums and the gradients that travel are float32 if the operands are float16 or bfloat16.

    Args:
        q: queries, [batch, heads, length, width].
        k: keys, [batch, key heads, length of keys, width]. The number of key heads divides that of
            the heads: grouped-query attention, in which only the key heads are sent.
        v: values, [batch, key heads, length of keys, width of values].
        mesh: the mesh; None means the global one.
        axis: the axis that shards both lengths.
        is_causal: a query sees the keys up to its own position. The lengths are equal then.
        scale: what scores are multiplied by; None means 1 / sqrt(width).
        dropout_p: the probability with which an attention weight is dropped. Which are dropped
            follows from torch.manual_seed and the position in the whole sequence, not from the
            mesh.
        segment_ids: integers [batch, length]: a query sees the keys of its own segment only, for
            sequences that are packed into one. The lengths are equal then.
        zigzag: the sequence is in zigzag order (see `zigzag`), in which each device has as much of
            a causal mask as any other. Half of the scores are then never computed.
        key_block: how many keys of a shard a device attends to at once, which bounds the memory for
            scores: [batch, heads, length of a shard, key_block]. None: all. The program has as many
            times more ops.

    Returns:
        [batch, heads, length, width of values], sharded as the queries.

    Errors:
        TypeError: an argument of another kind.
        ValueError: shapes that do not go together, an axis that the mesh does not have, or that
            does not divide a length (twice the axis with `zigzag`).

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("context",))
        >>> q, k, v = (torch.randn(1, 2, 16, 8, device="spmd") for _ in range(3))
        >>> out = spmd.nn.ring_attention(q, k, v, mesh, is_causal=True)
        >>> full = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> torch.allclose(out.cpu(), full.cpu(), atol=1e-5)
        True
    """
    mesh = mesh_or_global("ring_attention", mesh)
    axis = checked_axis("ring_attention", "axis", mesh, axis)
    causal = _arguments.boolean("ring_attention", "is_causal", is_causal)
    in_zigzag = _arguments.boolean("ring_attention", "zigzag", zigzag)
    dropout_p = _arguments.number("ring_attention", "dropout_p", dropout_p)
    if not 0 <= dropout_p < 1:
        raise ValueError(
            f"ring_attention: dropout_p must be at least 0 and below 1; got {dropout_p}"
        )
    _check_shapes(q, k, v, segment_ids, causal)
    n = mesh.shape[axis]
    for name, t in (("q", q), ("k", k)):
        if t.shape[2] % (2 * n if in_zigzag else n) != 0:
            parts = f"2 * {n} parts of zigzag order" if in_zigzag else f"{n} devices"
            raise ValueError(
                f"ring_attention: {name} has length {t.shape[2]}, which the {parts} along axis "
                f"{axis!r} do not divide; pad it, and give the padding a segment of its own"
            )
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    scale = _arguments.number("ring_attention", "scale", scale)
    lengths = (q.shape[2], k.shape[2])
    if key_block is not None:
        key_block = _arguments.integer("ring_attention", "key_block", key_block, 1)
    how = How(mesh, axis, n, causal, scale, in_zigzag, lengths, dropout_p, key_block)
    seed = torch.randint(1 << 31, (), device=q.device) if dropout_p > 0 else None
    out, _ = RingAttention.apply(q, k, v, segment_ids, seed, how)
    return out


def zigzag(t: Tensor, dim: int, n: int) -> Tensor:
    """The tensor with dimension `dim` in zigzag order for n devices: it is cut into 2 * n parts, of
    which device i gets parts i and 2 * n - 1 - i. Under a causal mask the first and the last part
    together have as much to do as any other such pair.

    Tokens, targets, positions and segments are brought into this order once, before they are
    sharded; everything but attention is indifferent to it.

    Errors: ValueError if 2 * n does not divide the dimension; IndexError if there is no such one.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> spmd.nn.zigzag(torch.arange(8), 0, 2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]
    """
    return _reordered("zigzag", t, dim, n, inverse=False)


def unzigzag(t: Tensor, dim: int, n: int) -> Tensor:
    """The inverse of `zigzag`.

    Errors: as `zigzag`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> spmd.nn.unzigzag(torch.tensor([0, 1, 6, 7, 2, 3, 4, 5]), 0, 2).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _reordered("unzigzag", t, dim, n, inverse=True)


def _reordered(caller: str, t: Tensor, dim: int, n: int, inverse: bool) -> Tensor:
    n = _arguments.integer(caller, "n", n, 1)
    rank = t.dim()
    dim = _arguments.integer(caller, "dim", dim)
    if not -rank <= dim < rank:
        raise IndexError(f"{caller}: dim is {dim}, but the tensor has {rank} dimensions")
    dim %= rank
    if t.shape[dim] % (2 * n) != 0:
        raise ValueError(
            f"{caller}: dimension {dim} has size {t.shape[dim]}, which 2 * {n} parts do not divide"
        )
    order = [part for i in range(n) for part in (i, 2 * n - 1 - i)]
    if inverse:
        order = [order.index(part) for part in range(2 * n)]
    parts = t.chunk(2 * n, dim)
    return torch.cat([parts[part] for part in order], dim)


def _check_shapes(q: Any, k: Any, v: Any, segment_ids: Any, causal: bool) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        _arguments.tensor("ring_attention", t, name)
        if t.dim() != 4:
            raise ValueError(
                f"ring_attention: {name} must have 4 dimensions, batch, heads, length, width; got "
                f"shape {tuple(t.shape)}"
            )
    shapes = f"got shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "ring_attention: q and k must have the same batch and width, k and v the same batch, "
            f"heads and length; {shapes}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"ring_attention: the number of heads of k must divide that of q; {shapes}"
        )
    if (causal or segment_ids is not None) and q.shape[2] != k.shape[2]:
        raise ValueError(
            "ring_attention: with is_causal or segment_ids, q and k have the same length; " + shapes
        )
    if segment_ids is not None:
        _arguments.tensor("ring_attention", segment_ids, "segment_ids")
        if tuple(segment_ids.shape) != (q.shape[0], q.shape[2]):
            raise ValueError(
                f"ring_attention: segment_ids must have shape {(q.shape[0], q.shape[2])}, batch "
                f"and length; got {tuple(segment_ids.shape)}"
            )
