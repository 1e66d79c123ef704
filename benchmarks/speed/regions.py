# SPDX-License-Identifier: Apache-2.0
"""What a manual region costs beside automatic code that does the same: recording, and whole steps.

The other side of each row is the automatic code, in place of eager PyTorch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import torch_spmd as spmd
from benchmarks.speed.measure import Row, Step, cpu_seconds
from torch_spmd import P

BACKEND = "cpu"
DEVICES = 4
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def automatic(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return torch.tanh(x @ up) @ down


def by_hand(mesh: spmd.Mesh) -> Function:
    """Megatron's MLP: a device has a part of the hidden features."""
    region: Function = spmd.shard_map(
        lambda x, up, down: spmd.psum(torch.tanh(x @ up) @ down, "x"),
        mesh,
        in_specs=(P(None, None), P(None, "x"), P("x", None)),
        out_specs=P(None, None),
    )
    return region


def step_of(function: Function, mesh: spmd.Mesh, width: int, layers: int, wait: bool) -> Step:
    """Forwards and backwards through layers of an MLP. Without `wait`, the program that was
    recorded runs behind the next recording."""
    torch.manual_seed(0)

    def parameter(*shape: int, spec: tuple[str | None, ...]) -> Tensor:
        t = torch.randn(*shape).mul(width**-0.5).to("spmd")
        return spmd.mark_sharding(t, mesh, spec).requires_grad_()

    ups = [parameter(width, 4 * width, spec=(None, "x")) for _ in range(layers)]
    downs = [parameter(4 * width, width, spec=("x", None)) for _ in range(layers)]
    x = torch.randn(width, width).to("spmd")

    def step() -> None:
        y = x
        for up, down in zip(ups, downs):
            y = y + function(y, up, down)
        y.square().mean().backward()
        for t in (*ups, *downs):
            t.grad = None
        spmd.sync(wait=wait)

    return step


def both(width: int, record: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    mesh = spmd.make_mesh((DEVICES,), ("x",))
    clock = time.thread_time if record else time.process_time
    sides = [
        cpu_seconds(step_of(function, mesh, width, 4, wait=not record), clock=clock)
        for function in (by_hand(mesh), automatic)
    ]
    return sides[0], sides[1]


def rows() -> list[Row]:
    return [
        Row("region, record 4 layers", None, partial(both, 16, record=True)),
        Row("region, step of 4 layers", None, partial(both, 256, record=False)),
    ]
