# SPDX-License-Identifier: Apache-2.0
"""Gradients that leave the program of their backward pass, for an optimizer that reads numbers or
for a script that does, leave it as their parameters are sharded."""

import pytest
import torch
from torch import nn

import torch_spmd as spmd

SPECS = {
    "two axes": {"0.weight": ("y", "x"), "2.weight": ("x", "y")},
    "one axis": {"0.weight": ("x", None), "2.weight": (None, "x")},
    "replicated over the batch's axis": {"0.weight": ("y", None), "2.weight": (None, "y")},
}


def model_and_batch(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(16, 64, bias=False), nn.Tanh(), nn.Linear(64, 16, bias=False)]
    return nn.Sequential(*layers), torch.randn(32, 16)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", SPECS)
def test_a_gradient_is_sharded_as_its_parameter(kind, half):
    plain, x = model_and_batch()
    model, _ = model_and_batch()
    model = model.to("spmd")
    mesh = spmd.make_mesh((2, 4), ("x", "y"))
    spmd.shard_module(model, mesh, SPECS[kind])
    batch = spmd.mark_sharding(x.to("spmd"), mesh, ("x", None))
    with torch.autocast("spmd", torch.bfloat16, enabled=half):
        model(batch).square().sum().backward()
    spmd.sync()
    rows = spmd.debug.collectives(step=False).rows
    if kind == "two axes":  # each gradient is 16 × 16 partial sums on a device: half are sent
        scattered = [row for row in rows if row.kind == "reduce_scatter" and row.axes == "x"]
        assert sum(row.wire_bytes for row in scattered) == 2 * (2 if half else 4) * 16 * 16 // 2
    norms = [p.grad.norm().item() for p in model.parameters()]
    plain(x).square().sum().backward()
    tolerance = 3e-2 if half else 1e-5
    for p, q, norm in zip(model.parameters(), plain.parameters(), norms, strict=True):
        assert spmd.sharding_of(p.grad).spec == spmd.sharding_of(p).spec
        assert norm == pytest.approx(q.grad.norm().item(), rel=tolerance)
        torch.testing.assert_close(
            p.grad.cpu(), q.grad, rtol=tolerance, atol=tolerance * q.grad.abs().max().item()
        )
