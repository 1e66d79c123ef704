# SPDX-License-Identifier: Apache-2.0
"""Whole steps on one GPU, which has all virtual devices, against eager's on the same GPU.

Seconds by the clock, since the host only starts kernels. Every step ends with a read of its loss.
Eager's run in a process of their own: once a device of another kind is registered, PyTorch refuses
backward passes on CUDA (pytorch/pytorch#161129). Both sides still run in turns.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.speed import models
from benchmarks.speed.measure import Row, cpu_seconds
from benchmarks.speed.steps import STEPS, Workload

BACKEND = "cuda"

# The kernels take most of the time, and not the host.
LARGE = models.GPTConfig(block=1024, layers=12, width=1536, heads=16, dropout=0.0)


def large(plan: str, **axes: int) -> Workload:
    make = partial(models.gpt_step, config=LARGE, length=1024, axes=axes, plan=plan)
    return Workload(make, time=0)


WORKLOADS: dict[str, Workload] = {
    **STEPS,
    "large GPT dp N=8": large("dp", data=8),
    "large GPT tp N=8": large("tp", model=8),
}


def serve(name: str) -> None:
    """Runs a step of eager's for each line that comes, and prints its seconds."""
    step = cpu_seconds(WORKLOADS[name].make("cuda"), clock=time.perf_counter)
    for _ in sys.stdin:
        print(step(), flush=True)


class Eager:
    """A call runs one step in the other process and returns its seconds."""

    def __init__(self, name: str) -> None:
        command = f"from benchmarks.speed.gpu import serve; serve({name!r})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def __del__(self) -> None:
        self.process.kill()
        self.process.wait()


def both(name: str) -> tuple[Callable[[], float], Callable[[], float]]:
    eager = Eager(name)
    return cpu_seconds(WORKLOADS[name].make("spmd"), clock=time.perf_counter), eager


def rows() -> list[Row]:
    """None where there is no GPU."""
    if not torch.cuda.is_available():
        return []
    return [
        Row(f"GPU, {name}", None, partial(both, name), pairs=5 if "large" in name else None)
        for name in WORKLOADS
    ]
