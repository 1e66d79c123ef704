# SPDX-License-Identifier: Apache-2.0
"""Random functions of shards: a region computes and differentiates what they compute for the shards
of each device by themselves."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd
from torch_spmd import P

AXES = {"d": 2, "x": 2}
SPECS = [(), ("d",), (None, "x"), ("d", "x"), (("d", "x"),), ("x", None, "d"), (None, None, "x")]


def step(rng, rank):
    """A function of a tensor, chosen at random; it reads the tensor's sizes when it runs."""
    dim = rng.randrange(rank)
    kind = rng.choice(
        ["tanh", "softmax", "norm", "permute", "merge", "split", "square", "sum", "mean", "add"]
    )
    order = rng.sample(range(rank), rank)
    keep = rng.random() < 0.5

    def run(t):
        if t.dim() != rank:
            return t
        if kind == "tanh":
            return t.tanh()
        if kind == "softmax":
            return t.softmax(dim)
        if kind == "norm":
            return F.layer_norm(t, t.shape[-1:])
        if kind == "permute":
            return t.permute(order)
        if kind == "merge" and dim + 1 < rank:
            return t.flatten(dim, dim + 1)
        if kind == "split" and t.shape[dim] % 2 == 0:
            return t.unflatten(dim, (2, -1) if keep else (-1, 2))
        if kind == "square" and rank >= 2:
            return (t @ t.transpose(-1, -2)) / t.shape[-1]
        if kind == "sum" and rank > 1:
            return t.sum(dim, keepdim=keep)
        if kind == "mean":
            return t - t.mean(dim, keepdim=True)
        return t + t.sum(dim, keepdim=True)

    return run


def program(seed):
    """A function of two shards, and the axes over which its result is summed."""
    rng = random.Random(seed)
    first = [step(rng, rng.choice([2, 3, 3, 4])) for _ in range(5)]
    last = [step(rng, rng.choice([2, 3])) for _ in range(3)]
    summed = rng.choice([(), ("x",), ("d", "x")])

    def function(a, b):
        for each in first:
            a = each(a)
        t = a.flatten(0, -2) if a.dim() > 2 else a.reshape(-1, a.shape[-1])
        t = t @ b[: t.shape[-1], :].expand(-1, -1) if t.shape[-1] <= b.shape[0] else t
        for each in last:
            t = each(t)
        return t

    return function, summed, rng.choice(SPECS), rng.choice([(), (None, "x"), (None, "d")])


def shard(t, spec, place):
    for dim, entry in enumerate(spec):
        axes = (entry,) if isinstance(entry, str) else entry or ()
        count = math.prod(AXES[axis] for axis in axes)
        index = 0
        for axis in axes:
            index = index * AXES[axis] + place[axis]
        size = t.shape[dim] // count
        t = t.narrow(dim, index * size, size)
    return t


def by_shards(function, summed, a, a_spec, b, b_spec):
    """[devices, elements]: each device's result, computed by itself."""
    places = [{"d": d, "x": x} for d in range(2) for x in range(2)]
    each = [function(shard(a, a_spec, p), shard(b, b_spec, p)).reshape(-1) for p in places]
    rows = []
    for p in places:
        same = [all(p[k] == q[k] for k in AXES if k not in summed) for q in places]
        rows.append(sum(row for row, is_same in zip(each, same) if is_same))
    return torch.stack(rows)


@pytest.mark.parametrize("seeds", range(6))
def test_a_region_computes_what_its_function_says_of_each_shard(seeds):
    mesh = spmd.make_mesh((2, 2), ("d", "x"))
    for seed in range(12 * seeds, 12 * seeds + 12):
        function, summed, a_spec, b_spec = program(seed)
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(8, 8, 8, dtype=torch.float64, generator=generator).requires_grad_()
        b = torch.randn(16, 8, dtype=torch.float64, generator=generator).requires_grad_()
        expected = by_shards(function, summed, a, a_spec, b, b_spec)
        expected.square().sum().backward()

        def on_shards(a, b, function=function, summed=summed):
            t = function(a, b).reshape(1, -1)
            return spmd.lax.pvary(spmd.lax.psum(t, summed) if summed else t, ("d", "x"))

        region = spmd.shard_map(on_shards, mesh, (P(*a_spec), P(*b_spec)), P(("d", "x")))
        ours = [t.detach().to("spmd").requires_grad_() for t in (a, b)]
        found = region(*ours)
        found.square().sum().backward()
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), msg=f"seed {seed}")
        for mine, theirs in zip(ours, (a, b)):
            if theirs.grad is not None:
                torch.testing.assert_close(mine.grad.cpu(), theirs.grad, msg=f"seed {seed}")
