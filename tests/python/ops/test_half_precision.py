# SPDX-License-Identifier: Apache-2.0
"""Sums of half precision are added in float32 and rounded once: results that are near the exact
ones on the CPU are so on the device, with and without sharding, and if partial sums exceed the
type.

`pytest --full-ops tests/python/ops/test_half_precision.py` runs all calls on all inputs
in all modes.
"""

import pytest
import torch
from half_calls import CALLS, INPUTS
from torch.utils._pytree import tree_leaves

import torch_spmd as spmd

DTYPES = (torch.float16, torch.bfloat16)
MODES = ("whole", "rows", "columns")
NARROW = {torch.float16: 11, torch.bfloat16: 8}  # bits


def outcome(call, x, mode="whole"):
    """The results and the gradient, on the host."""
    x = x.clone().detach()
    if mode != "whole":
        spec = ("a", None) if mode == "rows" else (None, "a")
        spmd.mark_sharding(x, spmd.make_mesh((3,), ("a",)), spec)
    x.requires_grad_()
    results = [t for t in tree_leaves(call(x)) if isinstance(t, torch.Tensor)]
    seeds = [t for t in results if t.requires_grad]
    results += torch.autograd.grad(seeds, x, [torch.ones_like(t) for t in seeds])
    return [t.detach().cpu() for t in results]


def wrong_in(got, cpu, exact, dtype):
    """A description of results whose error exceeds one rounding and the CPU's error."""
    words = []
    for k, (a, b, e) in enumerate(zip(got, cpu, exact, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b, e = a.double(), b.double(), e.double()
        fits = e.to(dtype).isfinite() & b.isfinite()
        if not fits.any():
            continue
        theirs = (b - e)[fits].abs().max()
        allowed = e.abs() * 2.0 ** -NARROW[dtype] * 2 + 2 * theirs + 1e-12
        far = fits & ~((a - e).abs() <= allowed)
        if far.any():
            i = int(far.flatten().nonzero()[0])
            one = "{} for {}, on the CPU {}".format(*(float(t.flatten()[i]) for t in (a, e, b)))
            words.append(f"result {k}: {int(far.sum())} are wrong, one is {one}")
    return words


def check(name, kind, dtype, mode):
    call, x = CALLS[name], INPUTS[kind]().to(dtype)
    cpu = outcome(call, x)
    exact = outcome(call, x.double())
    assert not wrong_in(outcome(call, x.to("spmd"), mode), cpu, exact, dtype)


@pytest.mark.parametrize("name", CALLS)
def test_sums(name, full_ops):
    """One combination of each call; the next call's is another."""
    every = [(k, d, m) for m in MODES for d in DTYPES for k in INPUTS]
    first = list(CALLS).index(name)
    for kind, dtype, mode in every if full_ops else (every[first % 3], every[6 + first * 5 % 12]):
        check(name, kind, dtype, mode)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_partial_sums_beyond_the_range_of_the_type_cancel(dtype):
    """A device's part of each of these sums exceeds float16, or loses the digits that matter in the
    end."""
    mesh = spmd.make_mesh((4,), ("a",))
    x = torch.full((8, 4), 256.0)
    x[4:] = -256
    x[0] = 260
    d = spmd.mark_sharding(x.to(dtype).to("spmd"), mesh, ("a", None))
    assert (d * 128).sum(0).tolist() == [512] * 4
    other = torch.full((8, 3), 256.0).to(dtype).to("spmd")
    spmd.mark_sharding(other, mesh, ("a", None))
    assert (d.t() @ other).tolist() == [[1024] * 3] * 4
    w = torch.full((4, 3), 32.0).to(dtype).to("spmd")
    assert (d @ w).sum(0).tolist() == [512] * 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_micro_steps_are_kept_in_float32(dtype):
    """Partial sums stay unreduced between programs; what is added to them is not rounded before the
    end."""
    mesh = spmd.make_mesh((4,), ("a",))
    w = torch.zeros(2, dtype=dtype, device="spmd", requires_grad=True)
    for scale in (512.0, 1.0, 1.0, -512.0):
        x = torch.full((4, 2), scale, dtype=dtype).to("spmd")
        (spmd.mark_sharding(x, mesh, ("a", None)) * w).sum().backward()
    assert w.grad.tolist() == [8, 8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_on_the_wire_are_those_of_the_type(dtype):
    mesh = spmd.make_mesh((4,), ("a",))
    x = spmd.mark_sharding(torch.ones(64, 1024, dtype=dtype).to("spmd"), mesh, ("a", None))
    assert x.sum(0)[0].item() == 64
    rows = [row for row in spmd.debug.collectives().rows if row.kind == "all_reduce"]
    assert [row.bytes for row in rows] == [2 * 1024]


def test_counts_of_a_frequent_index():
    """More than bfloat16 can count by ones. (The CPU adds 1000 thousandths to a half.)"""
    indices = torch.zeros(1000, dtype=torch.long, device="spmd")
    weight = torch.ones(4, 2, dtype=torch.bfloat16, device="spmd", requires_grad=True)
    torch.nn.functional.embedding(indices, weight, scale_grad_by_freq=True).sum().backward()
    torch.testing.assert_close(weight.grad[0].float().cpu(), torch.ones(2), atol=0, rtol=0.01)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_cross_entropy_of_more_rows_than_float16_counts(weighted):
    rows = 70_000
    logits = torch.zeros(rows, 4)
    logits[:, 1] = 1
    weight = torch.tensor([1.0, 2, 3, 4]) if weighted else None
    found = []
    for device, dtype in (("cpu", torch.float64), ("spmd", torch.float16)):
        x = logits.to(dtype).to(device).requires_grad_()
        target = (torch.arange(rows) % 4).to(device)
        of_classes = None if weight is None else weight.to(dtype).to(device)
        loss = torch.nn.functional.cross_entropy(x, target, weight=of_classes)
        (loss * 1024).backward()
        found.append((loss.detach().cpu().double(), x.grad.cpu().double()))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-3, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=4e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_of_a_sure_prediction(dtype):
    """A probability near 1 must not become 1 before it is taken from 1."""
    logits = torch.zeros(6, 4)
    logits[:, 0] = 7.0
    grads = []
    for device, kind in (("cpu", torch.float64), ("cpu", dtype), ("spmd", dtype)):
        x = logits.to(dtype).to(kind).to(device).requires_grad_()
        torch.nn.functional.cross_entropy(x, torch.zeros(6, dtype=torch.long).to(device)).backward()
        grads.append(x.grad.cpu())
    assert not wrong_in([grads[2]], [grads[1]], [grads[0]], dtype)
