# SPDX-License-Identifier: Apache-2.0
"""Recording ops: the time that Python spends before anything runs. No program runs: the backend
only plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import torch_spmd as spmd
from benchmarks.speed.extension import extension
from benchmarks.speed.measure import Row, cpu_seconds
from benchmarks.speed.models import gpt2_step

BACKEND = "mock_tpu:v4-16:plan"
OPS = 1000
Chain = Callable[[Tensor, Tensor], Tensor]


def additions(x: Tensor, b: Tensor) -> Tensor:
    for _ in range(OPS):
        x = x + b
    return x


def views(x: Tensor, b: Tensor) -> Tensor:
    """A view, and a write through it, five hundred times."""
    for _ in range(OPS // 4):
        x[2:6].mul_(b)
        x.view(2, 4)[1].add_(b)
    return x


def traced(chain: Chain, grad: bool, other: int, with_cut: bool) -> tuple[Callable[[], float], ...]:
    """Time per op. Pending work runs after the clock has been stopped, unless `with_cut`."""

    def side(device: str) -> Callable[[], float]:
        x, b = torch.ones(8).to(device), torch.ones(other).to(device)
        start = x.requires_grad_() if grad else x

        def step() -> float:
            with torch.set_grad_enabled(grad):
                before = time.process_time()
                end = chain(start, b)
                if with_cut:
                    spmd.sync(wait=True)
                seconds = time.process_time() - before
            if device == "spmd":
                spmd.sync(wait=True)
            del end
            return seconds / OPS

        return step

    return side("spmd"), side("cpu")


def load() -> tuple[Callable[[], float], None]:
    """One load from 4 MiB, which is more than a core's own cache."""
    chase = extension("core").Chase(4 << 20)
    return cpu_seconds(lambda: chase.run(1 << 18), calls=1 << 18, clock=time.thread_time), None


def eight() -> float:
    """A tenth of a millisecond, most of the time."""
    nanoseconds: float = extension("core").eight(200_000)
    return nanoseconds * 1e-9


def alone(timed: Callable[[], float], tries: int = 200) -> Callable[[], float]:
    """The first of several calls during which nobody else used the core, as far as a check before
    and one after can tell; after `tries` calls, the last. There is nothing to compare milliseconds
    with, so otherwise they would say as much about other users as about us: if another thread runs
    on the same core, as on rented machines, each gets little more than half of it."""
    best = min(eight() for _ in range(500))

    def sample() -> float:
        for _ in range(tries):
            before = eight()
            seconds = timed()
            if max(before, eight()) < 1.1 * best:
                break
        return seconds

    return sample


def gpt2(fused: bool) -> tuple[Callable[[], float], None]:
    """Forward, backward and AdamW, until the program has been handed to the device's thread, and
    taking its results. Sizes do not matter, since nothing is computed."""
    return alone(cpu_seconds(gpt2_step("spmd", fused), clock=time.thread_time)), None


def rows() -> list[Row]:
    add = partial(traced, additions, other=8)
    steps = partial(Row, budget=5.5, warm=20)
    return [
        Row("add, no grad", 0.75, partial(add, grad=False, with_cut=False), "µs"),
        Row("add, grad", 0.90, partial(add, grad=True, with_cut=False), "µs"),
        Row("add, no grad, with its cut", None, partial(add, grad=False, with_cut=True), "µs"),
        Row("views and writes", 1.00, partial(traced, views, False, 4, False), "µs"),
        Row("this core: eight instructions", None, lambda: (eight, None), "ns"),
        Row("this core: a load from 4 MiB", None, load, "ns"),
        steps("GPT-2 step, 12 layers", prepare=partial(gpt2, fused=False)),
        steps("GPT-2 step, 12 layers, fused AdamW", prepare=partial(gpt2, fused=True)),
    ]
