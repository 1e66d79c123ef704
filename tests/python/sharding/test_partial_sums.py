# SPDX-License-Identifier: Apache-2.0
"""Results of reductions along a sharded dimension stay unreduced for a while: every pair of kinds
of partial results, combined in every way, has the values of the CPU. With `--parts` a quarter of
the pairs, others with each commit."""

import itertools

import pytest
import rotation
import torch
import torch.nn.functional as F
from cut_results import assert_close

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "in_turns", "free_moves")

TERMS = {
    "whole": lambda t: t[0] * 0 + 3,
    "sum": lambda t: t.sum(0),
    "mean": lambda t: t.mean(0) + 0.1,  # rounded, so never equal to another
    "product": lambda t: t.mT @ t[:, :1] if t.dim() > 1 else t.dot(t),
    "max": lambda t: t.amax(0),
    "min": lambda t: t.amin(0),
    "prod": lambda t: t.prod(0),
    "any": lambda t: (t > 1).any(0),
    "all": lambda t: (t > 1).all(0),
    "count": lambda t: (t > 1).sum(0),
    "norm": lambda t: t.norm(2, 0),
    "var": lambda t: t.var(0),
    "logsumexp": lambda t: t.logsumexp(0),
    "argmax": lambda t: t.argmax(0),
    "last": lambda t: t[-1],
}


def places(t):
    return torch.arange(0, t.shape[-1] if t.dim() else 1, 2).to(t.device)


JOINS = {
    "add": torch.add,
    "sub": lambda a, b: a.double() - b.double(),
    "mul": torch.mul,
    "div": lambda a, b: a / (b + 2),
    "add of a multiple": lambda a, b: torch.add(a.double(), b.double(), alpha=-2),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "greater": torch.gt,
    "equal": torch.eq,
    "where": lambda a, b: torch.where(b > 1, a, b.to(a.dtype)),
    "lerp": lambda a, b: torch.lerp(a.double(), b.double(), 0.25),
    "addcmul": lambda a, b: torch.addcmul(a.double(), b.double(), a.double(), value=2),
    "addcdiv": lambda a, b: torch.addcdiv(a.double(), b.double(), a.double() + 9),
    "in place": lambda a, b: a.double().clone().add_(b),
    "copy": lambda a, b: torch.zeros_like(a).copy_(b) + a,
    "sum of a stack": lambda a, b: torch.stack([a, b.to(a.dtype)]).sum(0),
    "stack": lambda a, b: torch.stack([a.double(), b.double()]) * 2,
    "cat": lambda a, b: torch.cat([a.double().view(-1), b.double().view(-1)]).roll(1),
    "sum of both": lambda a, b: torch.cat([a.double().view(-1), b.double().view(-1)]).sum(),
    "masked": lambda a, b: a.masked_fill(b > 2, 7),
    "pad": lambda a, b: F.pad(a.double().view(-1), (1, 1), value=2.0) + b.double().sum(),
    "outer": lambda a, b: a.double().view(-1, 1) @ b.double().view(1, -1),
    "chain": lambda a, b: (a.double() + b + a.double() - b * 2 + b).neg() + 1,
    "cumulative": lambda a, b: a.double().view(-1).cumsum(0) + b.double().view(-1).flip(0),
    "index_add": lambda a, b: (
        a.double().view(-1).index_add(0, places(a), b.double().view(-1)[places(a)]) * 2
    ),
    "index_put": lambda a, b: (
        a.double().view(-1).index_put((places(a),), b.double().view(-1)[places(a)], accumulate=True)
        * 2
    ),
    "scatter": lambda a, b: (
        a.double().view(-1).scatter(0, places(a), b.double().view(-1)[places(a)]) * 2
    ),
    "part": lambda a, b: written(a.double().view(-1).clone(), b.double().view(-1)),
    "where of a constant": lambda a, b: torch.where(a > b, 1.0, b.double()),
    "clamp": lambda a, b: a.double().clamp(max=2.5) + b,
    "pow": lambda a, b: a.double() ** 2 + b,
    "type": lambda a, b: a.to(torch.int64) + b.to(torch.int64),
}


def written(a, b):
    a[::2] += b[::2]
    return a.mul_(2)


CUTS = {
    (6,): [((4,), "x"), ((2, 2), "y")],
    (5, 4): [((2, 3), ("x", "y"))],
}


def whole(shape):
    values = torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64)
    return (values.view(shape) * 7) % 5 - 0.75


@pytest.mark.parametrize("shape", CUTS)
@pytest.mark.parametrize("join", JOINS)
def test_pairs_of_terms(join, shape):
    wrong = []
    for first, second in rotation.some(list(itertools.product(TERMS, TERMS))):
        want = joined(join, first, second, whole(shape))
        for sizes, axis in CUTS[shape]:
            d = whole(shape).to("spmd")
            mesh = spmd.make_mesh(sizes, ("x", "y")[: len(sizes)])
            spmd.mark_sharding(d, mesh, (axis, *[None] * (len(shape) - 1)))
            got = joined(join, first, second, d)
            if not torch.allclose(got.cpu().double(), want.double(), equal_nan=True):
                wrong.append((first, second, sizes))
    assert not wrong, wrong[:20]


def joined(join, first, second, t):
    a, b = (TERMS[name](t) for name in (first, second))
    if "product" in (first, second) and t.dim() > 1:
        a, b = a.view(-1), b.view(-1)
    return JOINS[join](a, b)


GRADIENTS = ["sum", "product", "max", "prod", "norm", "last"]


@pytest.mark.parametrize("join", sorted(JOINS.keys() - {"greater", "equal", "type"}))
def test_gradients_of_pairs(join):
    for first in GRADIENTS:
        for second in GRADIENTS:
            got, want = (gradient(join, first, second, device) for device in ("spmd", "cpu"))
            assert_close(got, want, f"{first}, {second}")


def gradient(join, first, second, device):
    t = whole((5, 4)).to(device)
    if device == "spmd":
        spmd.mark_sharding(t, spmd.make_mesh((2,), ("x",)), ("x", None))
    t.requires_grad_()
    y = joined(join, first, second, t)
    (y * y.detach().cos()).sum().backward()
    return t.grad.cpu()


def test_slice_writes_of_terms():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    g = torch.zeros(4, 1).to("spmd")
    p = spmd.mark_sharding(torch.ones(4, 2).to("spmd"), mesh, ("x", None))
    w = spmd.mark_sharding(torch.ones(2, 1).to("spmd"), mesh, ("y", None))
    g[:2] = p[:2] @ w
    g[2:] = p[2:] @ w
    assert g.cpu().flatten().tolist() == [2, 2, 2, 2]


def test_a_mean_of_integers_takes_the_sum_not_its_terms():
    mesh = spmd.make_mesh((4,), ("x",))
    a, b = torch.arange(24).view(1, 4, 6), torch.arange(6 * 8).view(6, 8) % 7
    x = spmd.mark_sharding(a.to("spmd"), mesh, (None, None, "x"))
    w = spmd.mark_sharding(b.to("spmd"), mesh, ("x", None))
    pooled = torch.nn.functional.avg_pool2d(x @ w, 3, stride=1)
    assert torch.equal(pooled.cpu(), torch.nn.functional.avg_pool2d(a @ b, 3, stride=1))
