# SPDX-License-Identifier: Apache-2.0
"""The steps of ring attention: scores of one shard's queries with each shard's keys in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_spmd.regions.collectives import axis_index, ppermute
from torch_spmd.regions.manual import shard_map
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import PartitionSpec as P

# --- the function and its derivative ---


@dataclass(frozen=True)
class How:
    mesh: Mesh
    axis: str
    n: int
    causal: bool
    scale: float
    zigzag: bool
    lengths: tuple[int, int]  # of queries and keys, whole
    dropout_p: float
    key_block: int | None

    def on_shards(self, f: Any, args: Sequence[Tensor | None], results: Sequence[P]) -> Any:
        """Runs a function of shards on whole tensors, which are sharded by their lengths."""
        given = [(i, t) for i, t in enumerate(args) if t is not None]

        def region(*shards: Tensor) -> Any:
            places: list[Tensor | None] = [None] * len(args)
            for (i, _), shard in zip(given, shards):
                places[i] = shard
            return f(self, *places)

        specs = tuple(_SPECS[t.dim()](self.axis) for _, t in given)
        run = shard_map(region, self.mesh, specs, tuple(results), axis_names={self.axis})
        return run(*(t for _, t in given))


_SPECS = {  # by rank
    4: lambda axis: P(None, None, axis, None),
    3: lambda axis: P(None, None, axis),
    2: lambda axis: P(None, axis),
    0: lambda axis: P(),
}


class RingAttention(torch.autograd.Function):
    """q, k, v → the result, and the logarithm of each query's sum of exponentials. Backwards, the
    scores are computed again from these sums."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None, seed: Tensor | None, how: How
    ) -> Any:
        results = (_SPECS[4](how.axis), _SPECS[3](how.axis))
        return how.on_shards(_forward, (q, k, v, segments, seed), results)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        q, k, v, segments, seed, ctx.how = inputs
        out, sums = output
        ctx.save_for_backward(q, k, v, segments, seed, out, sums)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_sums: Tensor) -> Any:
        how = ctx.how
        results = (_SPECS[4](how.axis),) * 3
        args = (*ctx.saved_tensors, grad, grad_sums)
        return *how.on_shards(_backward, args, results), None, None, None


class _Keys(NamedTuple):
    """What goes around the ring: keys and values in one tensor, their segments and positions."""

    kv: Tensor
    segments: Tensor | None
    positions: Tensor
    width: int  # of the keys

    @property
    def k(self) -> Tensor:
        return self.kv[..., : self.width]

    @property
    def v(self) -> Tensor:
        return self.kv[..., self.width :]

    def blocks(self, size: int | None) -> list[_Keys]:
        length = self.positions.shape[0]
        size = length if size is None else size
        return [self.part(slice(i, min(i + size, length))) for i in range(0, length, size)]

    def part(self, which: slice) -> _Keys:
        segments = None if self.segments is None else self.segments[:, which]
        return _Keys(self.kv[..., which, :], segments, self.positions[which], self.width)


class _Queries(NamedTuple):
    """The queries, [batch, key heads, group, length, width], their segments and positions, and what
    the derivative needs of them: `terms` has tensors [batch, key heads, group, length, …]."""

    q: Tensor
    segments: Tensor | None
    positions: Tensor
    terms: tuple[Tensor, ...] = ()

    def half(self, which: slice) -> _Queries:
        segments = None if self.segments is None else self.segments[:, which]
        terms = tuple(t[:, :, :, which] for t in self.terms)
        return _Queries(self.q[:, :, :, which], segments, self.positions[which], terms)


def _chosen(condition: Tensor, first: Any, second: Any) -> Any:
    """`first` on the devices where the condition holds, else `second`, for each tensor in them."""
    if isinstance(first, Tensor):
        return torch.where(condition, first, second)
    if not isinstance(first, tuple):
        return first
    items = [_chosen(condition, a, b) for a, b in zip(first, second)]
    return type(first)(*items) if hasattr(first, "_fields") else tuple(items)


def _positions(how: How, device: Tensor, length: int) -> Tensor:
    """The positions in the whole sequence of what a device has of it."""
    steps = torch.arange(length, device=device.device)
    if not how.zigzag:
        return device * length + steps
    half = length // 2
    first = device * half + steps[:half]
    return torch.cat([first, (2 * how.n - 1 - device) * half + steps[:half]])


def _passed_on(how: How, t: Tensor) -> Tensor:
    return ppermute(t, how.axis, [(i, (i + 1) % how.n) for i in range(how.n)])


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def _grouped(t: Tensor, key_heads: int) -> Tensor:
    return t.unflatten(1, (key_heads, t.shape[1] // key_heads))


def _scores(how: How, queries: _Queries, keys: _Keys, causal: bool) -> Tensor:
    """[batch, key heads, group, length, length of keys]; -inf where a query does not see a key."""
    group = queries.q.shape[2:4]
    scores = (queries.q.flatten(2, 3) @ _wide(keys.k).transpose(-1, -2)).unflatten(2, group)
    scores = scores * how.scale
    if causal:
        sees = queries.positions[:, None] >= keys.positions[None, :]
        scores = torch.where(sees, scores, -math.inf)
    if queries.segments is not None and keys.segments is not None:
        same = queries.segments[:, :, None] == keys.segments[:, None, :]
        scores = torch.where(same[:, None, None], scores, -math.inf)
    return scores


def _kept(how: How, seed: Tensor, queries: _Queries, keys: _Keys) -> Tensor:
    """Which attention weights dropout keeps, as 0 and 1 / (1 - p)."""
    batch, heads, group = queries.q.shape[:3]
    rows = torch.arange(batch * heads * group, device=seed.device).view(batch, heads, group, 1)
    rows = _mixed(rows * how.lengths[0] + queries.positions + seed)
    numbers = _mixed(rows[..., None] + keys.positions * 0x9E3779B9)
    kept = numbers >= int(how.dropout_p * (1 << 32))
    return kept.to(queries.q.dtype) / (1 - how.dropout_p)


def _mixed(numbers: Tensor) -> Tensor:
    """A pseudorandom integer of 32 bits for each integer: the last step of MurmurHash3, by Austin
    Appleby."""
    x = numbers & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 16)


# --- forward ---


class _Sum(NamedTuple):
    """A softmax so far: the largest score of each query, the sum of the exponentials, and the sum
    of the values times them, relative to the largest."""

    largest: Tensor  # [batch, key heads, group, length]
    total: Tensor
    values: Tensor  # [batch, key heads, group, length, width]

    def half(self, which: slice) -> _Sum:
        return _Sum(*(t[:, :, :, which] for t in self))


def _add(
    how: How, so_far: _Sum | None, queries: _Queries, keys: _Keys, seed: Any, causal: bool
) -> _Sum:
    """The softmax with these keys, too."""
    for block in keys.blocks(how.key_block):
        so_far = _add_block(how, so_far, queries, block, seed, causal)
    assert so_far is not None
    return so_far


def _add_block(
    how: How, so_far: _Sum | None, queries: _Queries, keys: _Keys, seed: Any, causal: bool
) -> _Sum:
    scores = _scores(how, queries, keys, causal)
    least = torch.finfo(scores.dtype).min  # of a query that has seen no key yet
    largest = scores.amax(-1).clamp_min(least if so_far is None else so_far.largest)
    weights = (scores - largest[..., None]).exp()
    total = weights.sum(-1)
    if seed is not None:
        weights = weights * _kept(how, seed, queries, keys)
    group = weights.shape[2:4]
    values = (weights.flatten(2, 3) @ _wide(keys.v)).unflatten(2, group)
    if so_far is not None:
        before = (so_far.largest - largest).exp()
        total = total + so_far.total * before
        values = values + so_far.values * before[..., None]
    return _Sum(largest, total, values)


def _forward(
    how: How, q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None, seed: Tensor | None
) -> tuple[Tensor, Tensor]:
    device = axis_index(how.axis)
    queries = _Queries(
        _grouped(_wide(q), k.shape[1]), segments, _positions(how, device, q.shape[2])
    )
    keys = _Keys(torch.cat([k, v], -1), segments, _positions(how, device, k.shape[2]), k.shape[-1])
    so_far = _add(how, None, queries, keys, seed, how.causal)
    for step in range(1, how.n):
        keys = _next(how, keys, device, step)
        if not (how.zigzag and how.causal):
            so_far = _add(how, so_far, queries, keys, seed, how.causal)
            continue
        first, second = so_far.half(_first(q)), so_far.half(_second(q))
        for part in _parts(how, queries, keys, device, step):
            if part.second_queries is None:
                second = _add(how, second, part.queries, part.keys, seed, False)
                continue
            mine = _chosen(part.second_queries, second, first)
            mine = _add(how, mine, part.queries, part.keys, seed, False)
            second = _chosen(part.second_queries, mine, second)
            first = _chosen(part.second_queries, first, mine)
        so_far = _Sum(*(torch.cat([a, b], 3) for a, b in zip(first, second)))
    out = so_far.values / so_far.total[..., None]
    sums = so_far.largest + so_far.total.log()
    return out.flatten(1, 2).to(q.dtype), sums.flatten(1, 2)


def _next(how: How, keys: _Keys, device: Tensor, step: int) -> _Keys:
    """The keys of the device before, which had come `step` - 1 steps."""
    segments = None if keys.segments is None else _passed_on(how, keys.segments)
    positions = _positions(how, (device - step) % how.n, keys.positions.shape[0])
    return _Keys(_passed_on(how, keys.kv), segments, positions, keys.width)


def _first(t: Tensor) -> slice:
    return slice(0, t.shape[2] // 2)


def _second(t: Tensor) -> slice:
    return slice(t.shape[2] // 2, t.shape[2])


class _Part(NamedTuple):
    """A quarter of a block that is seen as a whole. `second_queries`: on which devices the queries
    are of the second half, and so are the keys; None: the second queries and the first keys."""

    queries: _Queries
    keys: _Keys
    second_queries: Tensor | None


def _parts(how: How, queries: _Queries, keys: _Keys, device: Tensor, step: int) -> list[_Part]:
    """In zigzag order and with keys of another device, what a causal mask leaves of a block.

    A device i has parts i and 2n - 1 - i of the sequence, the keys parts j and 2n - 1 - j. The
    second queries see the first keys. The first queries see the first keys if j < i; the second
    queries see the second keys if j > i. Nothing else is seen.
    """
    half = queries.positions.shape[0] // 2
    first, second = slice(0, half), slice(half, 2 * half)
    later = device < step  # the keys are of device - step + n, which is greater
    q = _chosen(later, queries.half(second), queries.half(first))
    k = _chosen(later, keys.part(second), keys.part(first))
    return [_Part(queries.half(second), keys.part(first), None), _Part(q, k, later)]


# --- backward ---


def _gradients(
    how: How, queries: _Queries, keys: _Keys, seed: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """What these keys add to the gradients of the queries, and the gradients of keys and values in
    one tensor."""
    blocks = keys.blocks(how.key_block)
    grads = [_gradients_of_block(how, queries, block, seed, causal) for block in blocks]
    grad_q = grads[0][0]
    for more, _ in grads[1:]:
        grad_q = grad_q + more
    return grad_q, torch.cat([grad_kv for _, grad_kv in grads], 2)


def _gradients_of_block(
    how: How, queries: _Queries, keys: _Keys, seed: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    grad, sums, shift = queries.terms
    weights = (_scores(how, queries, keys, causal) - sums).exp()
    group = weights.shape[2:4]
    flat_grad = grad.flatten(2, 3)
    grad_weights = (flat_grad @ _wide(keys.v).transpose(-1, -2)).unflatten(2, group)
    kept = weights
    if seed is not None:
        scale = _kept(how, seed, queries, keys)
        kept, grad_weights = weights * scale, grad_weights * scale
    grad_scores = weights * (grad_weights - shift) * how.scale
    grad_q = (grad_scores.flatten(2, 3) @ _wide(keys.k)).unflatten(2, group)
    grad_k = grad_scores.flatten(2, 3).transpose(-1, -2) @ queries.q.flatten(2, 3)
    grad_v = kept.flatten(2, 3).transpose(-1, -2) @ flat_grad
    return grad_q, torch.cat([grad_k, grad_v], -1)


def _backward(
    how: How,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    sums: Tensor,
    grad: Tensor,
    grad_sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    device, heads = axis_index(how.axis), k.shape[1]
    grad = _wide(grad)
    shift = (grad * _wide(out)).sum(-1) - grad_sums
    terms = tuple(_grouped(t, heads) for t in (grad, sums[..., None], shift[..., None]))
    positions = _positions(how, device, q.shape[2])
    queries = _Queries(_grouped(_wide(q), heads), segments, positions, terms)
    keys = _Keys(torch.cat([k, v], -1), segments, _positions(how, device, k.shape[2]), k.shape[-1])
    grad_q, grad_kv = _gradients(how, queries, keys, seed, how.causal)
    for step in range(1, how.n):
        keys, grad_kv = _next(how, keys, device, step), _passed_on(how, grad_kv)
        if not (how.zigzag and how.causal):
            more_q, more_kv = _gradients(how, queries, keys, seed, how.causal)
            grad_q, grad_kv = grad_q + more_q, grad_kv + more_kv
            continue
        for part in _parts(how, queries, keys, device, step):
            more_q, more_kv = _gradients(how, part.queries, part.keys, seed, False)
            nothing = torch.zeros_like(more_q), torch.zeros_like(more_kv)
            if part.second_queries is None:
                grad_q = grad_q + torch.cat([nothing[0], more_q], 3)
                grad_kv = grad_kv + torch.cat([more_kv, nothing[1]], 2)
                continue
            of_q, of_kv = (
                [
                    torch.where(part.second_queries, 0, more),
                    torch.where(part.second_queries, more, 0),
                ]
                for more in (more_q, more_kv)
            )
            grad_q = grad_q + torch.cat(of_q, 3)
            grad_kv = grad_kv + torch.cat(of_kv, 2)
    grad_kv = _passed_on(how, grad_kv) if how.n > 1 else grad_kv
    grad_k, grad_v = grad_kv[..., : k.shape[-1]], grad_kv[..., k.shape[-1] :]
    return grad_q.flatten(1, 2).to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)
