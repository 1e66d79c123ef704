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
BUDGET = 1.05
Function = Callable[..., Tensor]


def automatic(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return torch.tanh(x @ up) @ down


def stack(layer: Function, x: Tensor, *weights: Tensor) -> Tensor:
    """Layers with residuals, whose weights come in pairs."""
    for up, down in zip(weights[::2], weights[1::2]):
        x = x + layer(x, up, down)
    return x


def by_hand(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Megatron's MLP: a device has a part of the hidden features."""
    return spmd.lax.psum(automatic(x, up, down), "x")


def gathered(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """FSDP: a device has a part of the rows of each parameter, and its own samples."""
    whole = (spmd.lax.all_gather(w, "x", axis=0, tiled=True) for w in (up, down))
    return automatic(x, *whole)


def in_regions(mesh: spmd.Mesh, function: Function, layers: int) -> Function:
    """The function of so many layers in a region of its own."""
    region: Function = spmd.shard_map(
        function,
        mesh,
        in_specs=(P(None, None), *[P(None, "x"), P("x", None)] * layers),
        out_specs=P(None, None),
    )
    return region


def step_of(
    function: Function, mesh: spmd.Mesh, width: int, layers: int, wait: bool, fsdp: bool = False
) -> Step:
    """Forwards and backwards through a function of an MLP's weights. Without `wait`, the program
    that was recorded runs behind the next recording."""
    torch.manual_seed(0)
    rows = ("x", None)

    def parameter(*shape: int, spec: tuple[str | None, ...]) -> Tensor:
        t = torch.randn(*shape).mul(width**-0.5).to("spmd")
        return spmd.mark_sharding(t, mesh, spec).requires_grad_()

    up = rows if fsdp else (None, "x")
    ups = [parameter(width, 4 * width, spec=up) for _ in range(layers)]
    downs = [parameter(4 * width, width, spec=rows) for _ in range(layers)]
    x = torch.randn(width, width).to("spmd")
    if fsdp:
        spmd.mark_sharding(x, mesh, rows)

    weights = [t for pair in zip(ups, downs) for t in pair]

    def step() -> None:
        function(x, *weights).square().mean().backward()
        spmd.sync(wait=wait)
        for t in weights:
            t.grad = None

    return step


def both(width: int, record: bool, each: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    """A region for each of four layers, or one for all of them, and automatic code."""
    mesh = spmd.make_mesh((DEVICES,), ("x",))
    clock = time.thread_time if record else time.process_time
    if each:
        ours = partial(stack, in_regions(mesh, by_hand, 1))
    else:
        ours = in_regions(mesh, partial(stack, by_hand), 4)
    sides = [
        cpu_seconds(step_of(function, mesh, width, 4, wait=not record), clock=clock)
        for function in (ours, partial(stack, automatic))
    ]
    return sides[0], sides[1]


def both_of_fsdp() -> tuple[Callable[[], float], Callable[[], float]]:
    """Recording of parameters that are gathered, by hand and by the compiler."""
    mesh = spmd.make_mesh((DEVICES,), ("x",))
    by_rows = P("x", None)
    region = spmd.shard_map(gathered, mesh, in_specs=(by_rows,) * 3, out_specs=by_rows)
    sides = [
        cpu_seconds(
            step_of(partial(stack, layer), mesh, 16, 4, wait=False, fsdp=True),
            clock=time.thread_time,
        )
        for layer in (region, automatic)
    ]
    return sides[0], sides[1]


def rows() -> list[Row]:
    return [
        Row("4 regions, record", BUDGET, partial(both, 16, record=True, each=True)),
        Row("1 region of 4 layers, record", BUDGET, partial(both, 16, record=True, each=False)),
        Row("4 regions of FSDP, record", BUDGET, both_of_fsdp),
        Row("4 regions, step", BUDGET, partial(both, 256, record=False, each=True)),
        Row("1 region of 4 layers, step", BUDGET, partial(both, 256, record=False, each=False)),
    ]
