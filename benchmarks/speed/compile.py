# SPDX-License-Identifier: Apache-2.0
"""Compiling a step of a GPT as deep as GPT-2: lowering, propagation, partition, loading."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import torch_spmd as spmd
from benchmarks.speed.measure import Row
from benchmarks.speed.models import DEEP, gpt_step

BACKEND = "mock_tpu:v4-8192:plan"
LENGTHS = 4 * DEEP.block  # the number of programs that can be asked for
# 8, 64, 512 and 4096 devices: every dimension divides evenly, no axis has size 1.
MESHES = ((2, 4), (16, 4), (128, 4), (1024, 4))


def compile_seconds(layers: int, axes: dict[str, int], plan: str) -> Callable[[], float]:
    """Each call compiles for another sequence length, so that no program is cached, and forgets the
    plans of other lengths. The first step creates the optimizer's state; the second one is
    measured."""
    length = iter(range(DEEP.block, LENGTHS))
    config = dataclasses.replace(DEEP, block=LENGTHS, layers=layers)
    batch = max(8, axes.get("data", 1))

    def timed() -> float:
        step = gpt_step("spmd", config, batch=batch, length=next(length), axes=axes, plan=plan)
        step()
        spmd._C.forget_programs()
        step()
        event = spmd.debug.explain_compile().rows[-1]
        return float(event.milliseconds) / 1e3

    return timed


def whole(layers: int, axes: dict[str, int], plan: str) -> tuple[Callable[[], float], None]:
    return compile_seconds(layers, axes, plan), None


def beside_eight_devices(
    mesh: tuple[int, int],
) -> tuple[Callable[[], float], Callable[[], float]]:
    """The same program for more devices, compared with the time for eight devices."""
    more, eight = (dict(zip(("data", "model"), sizes)) for sizes in (mesh, MESHES[0]))
    return compile_seconds(6, more, "2d"), compile_seconds(6, eight, "2d")


def recurrent_seconds(forget: bool) -> Callable[[], float]:
    """An LSTM over 40 positions and a layer that is sharded, for another batch in each call. The
    plans of other batches are forgotten, or not."""
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    lstm = nn.LSTM(64, 128, batch_first=True).to("spmd")
    head = nn.Linear(128, 4).to("spmd")
    spmd.mark_sharding(head.weight, mesh, (None, "model"))
    optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], 0.1)
    batches = itertools.cycle(range(1024 if forget else 1032, 2048, 16))

    def timed() -> float:
        x = torch.randn(next(batches), 40, 64).to("spmd")
        spmd.mark_sharding(x, mesh, ("data", None, None))
        if forget:
            spmd._C.forget_programs()
        head(lstm(x)[0][:, -1]).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        spmd.sync()
        return float(spmd.debug.explain_compile().rows[-1].milliseconds) / 1e3

    return timed


def for_another_batch() -> tuple[Callable[[], float], Callable[[], float]]:
    return recurrent_seconds(forget=False), recurrent_seconds(forget=True)


def rows() -> list[Row]:
    plans: tuple[tuple[str, dict[str, int]], ...] = (
        ("dp", {}),
        ("dp", {"data": 8}),
        ("tp", {"model": 8}),
    )
    return [
        *(
            Row(f"compile 12 layers, {plan}", 0.5, partial(whole, 12, axes, plan), "s", warm=1)
            for plan, axes in plans
        ),
        Row("compile 6 layers, 2d", 0.2, partial(whole, 6, {"data": 2, "model": 4}, "2d"), "s", 1),
        Row("compile an LSTM for another batch / first", 0.5, for_another_batch, warm=1),
        Row("compile 96 layers, tp", 5, partial(whole, 96, {"model": 8}, "tp"), "s", 0, pairs=3),
        *(
            Row(
                f"compile for {mesh[0] * mesh[1]} devices / for 8",
                1.2,
                partial(beside_eight_devices, mesh),
                warm=1,
            )
            for mesh in MESHES[1:]
        ),
    ]
