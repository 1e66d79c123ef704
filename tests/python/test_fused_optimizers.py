# SPDX-License-Identifier: Apache-2.0
"""Fused Adam is recorded once and runs PyTorch's own kernel on each tile."""

import itertools

import pytest
import torch

import torch_spmd as spmd
from torch_spmd import _C

SHAPES = [(300, 256), (7, 5), (), (0, 3)]  # the first: several parts of the kernel's copies


def steps(device, make, dtype=torch.float32, mesh=None, rates=(1e-2, 1e-2, 3e-3)):
    """Parameters and state after one step per rate, with gradients that do not depend on them."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(s, generator=generator).to(dtype) for s in SHAPES]
    params = [torch.nn.Parameter(t.to(device)) for t in starts]
    if mesh is not None:
        for p in params:
            if p.dim() == 2:
                spmd.mark_sharding(p, mesh, ("model", None))
    optimizer = make(params)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(dtype).to(device)
        optimizer.step()
    states = [optimizer.state[p] for p in params]
    return [[p.detach().cpu(), *(s[k].cpu() for k in sorted(s))] for p, s in zip(params, states)]


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1, fused=True)


def adam(params):
    return torch.optim.Adam(params, lr=1e-2, weight_decay=0.1, maximize=True, fused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", [adamw, adam])
def test_the_bits_are_those_of_the_fused_kernel(make, dtype):
    got, want = (steps(device, make, dtype) for device in ("spmd", "cpu"))
    for ours, theirs in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("make", [adamw, adam])
def test_cut_parameters_are_stepped_alike(make):
    """The kernel rounds a tensor's last few elements otherwise: a tile's, here."""
    mesh = spmd.make_mesh((8,), ("model",))
    got, want = steps("spmd", make, mesh=mesh), steps("cpu", make)
    for ours, theirs in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_another_learning_rate_compiles_nothing():
    steps("spmd", adamw)
    before = _C.statistics()["compiles"]
    steps("spmd", adamw, rates=(1e-2, 5e-3, 0.0, 1.0))
    assert _C.statistics()["compiles"] == before


def calls_of_last_program():
    text = str(spmd.debug.print_program())
    return [
        line.split("= call ")[1].split("(")[0] for line in text.splitlines() if "= call" in line
    ]


def test_each_parameter_is_one_call():
    params = [torch.nn.Parameter(torch.ones(4, 3).to("spmd")) for _ in range(5)]
    optimizer = adamw(params)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        spmd.sync()
        before = _C.statistics()["records"]
        optimizer.step()
    assert _C.statistics()["records"] - before == 2  # the step numbers, the step
    calls = calls_of_last_program()
    assert calls.count("spmd::adam") == 5
    assert "aten::sqrt" not in calls


def test_what_the_kernel_does_not_take_is_computed_in_its_parts():
    """The largest average so far is kept: other ops, the same numbers."""

    def amsgrad(params):
        return torch.optim.AdamW(params, lr=1e-2, amsgrad=True, fused=True)

    got, want = steps("spmd", amsgrad), steps("cpu", amsgrad)
    assert "spmd::adam" not in calls_of_last_program()
    for ours, theirs in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
