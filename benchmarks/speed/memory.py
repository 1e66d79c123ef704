# SPDX-License-Identifier: Apache-2.0
"""The most memory a training step holds, ours over eager's: resident bytes, each side in a process
of its own, beyond what it held before the model was made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.speed.measure import Row
from benchmarks.speed.steps import STEPS

BACKEND = "cpu"
BUDGET = 1.05


def resident(field: str) -> float:
    """Bytes: `VmRSS` now, or `VmHWM`, the most since the last reset."""
    text = Path("/proc/self/status").read_text()
    return float(text.split(field + ":")[1].split()[0]) * 1024


def peak(name: str, device: str) -> None:
    """Prints the peak. Runs in a process of its own."""
    before = resident("VmRSS")
    step = STEPS[name](device)
    for _ in range(3):
        step()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    for _ in range(2):
        step()
    print(resident("VmHWM") - before)


def peak_of(name: str, device: str) -> float:
    command = f"from benchmarks.speed.memory import peak; peak({name!r}, {device!r})"
    done = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def both(name: str) -> tuple[Callable[[], float], Callable[[], float]]:
    return partial(peak_of, name, "spmd"), partial(peak_of, name, "cpu")


def rows() -> list[Row]:
    return [
        Row(f"memory {name}", BUDGET, partial(both, name), "MiB", warm=0, pairs=3) for name in STEPS
    ]
