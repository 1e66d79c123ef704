# SPDX-License-Identifier: Apache-2.0
"""The most bytes that tensors hold at once in a step, ours over eager's: parameters, optimizer
states, activations, gradients. Each side runs in a process of its own, in which
allocations are counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.speed.extension import extension
from benchmarks.speed.measure import Row
from benchmarks.speed.steps import STEPS

BACKEND = "cpu"


def peak(name: str, device: str) -> None:
    """Prints the peak. Runs in a process of its own."""
    extension("live_bytes").start()
    step = STEPS[name].make(device)
    for _ in range(3):
        step()
    extension("live_bytes").take_peak()
    for _ in range(2):
        step()
    print(extension("live_bytes").take_peak())


def peak_of(name: str, device: str) -> float:
    command = f"from benchmarks.speed.memory import peak; peak({name!r}, {device!r})"
    done = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    return float(done.stdout.split()[-1])


def both(name: str) -> tuple[Callable[[], float], Callable[[], float]]:
    extension("live_bytes")
    return partial(peak_of, name, "spmd"), partial(peak_of, name, "cpu")


def rows() -> list[Row]:
    return [
        Row(f"memory {name}", workload.memory, partial(both, name), "MiB", warm=0, pairs=1)
        for name, workload in STEPS.items()
    ]
