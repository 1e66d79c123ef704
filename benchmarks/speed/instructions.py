# SPDX-License-Identifier: Apache-2.0
"""Instructions per recorded op, and of a step, counted by callgrind, so that a busy machine does
not matter. Each side runs in a process of its own. No program runs: the backend only plans. Needs
valgrind and its headers; without them there are no rows."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import torch_spmd as spmd
from benchmarks.speed.extension import extension
from benchmarks.speed.measure import Row
from benchmarks.speed.models import gpt2_step
from benchmarks.speed.trace import BACKEND, OPS, additions, views

HEADER = Path("/usr/include/valgrind/callgrind.h")


def from_cpp(x: Tensor, b: Tensor) -> Tensor:
    end: Tensor = extension("callgrind").add(x, b, OPS)
    return end


CHAINS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool, int, float | None]] = {
    "add from C++": (from_cpp, False, 8, 0.75),
    "add from C++, grad": (from_cpp, True, 8, None),
    "add from Python": (additions, False, 8, 0.75),
    "add from Python, grad": (additions, True, 8, 0.90),
    "views and writes from Python": (views, False, 4, 1.00),
}


def count(name: str, device: str) -> None:
    """Runs one chain with the counter on, in a process of its own under valgrind."""
    chain, grad, other, _ = CHAINS[name]
    spmd.config.set_backend(BACKEND)
    x = torch.ones(8).to(device).requires_grad_(grad)
    b = torch.ones(other).to(device)
    with torch.set_grad_enabled(grad):
        for warm in range(4):
            if warm == 3:
                extension("callgrind").toggle()
            end = chain(x, b)
            if warm == 3:
                extension("callgrind").toggle()
            spmd.sync(wait=True)
            del end


def count_step(fused: bool) -> None:
    """One step of GPT-2, all of it on this thread, since callgrind counts one thread."""
    spmd.config.set_backend(BACKEND)
    step = gpt2_step("spmd", fused)
    gc.disable()
    for _ in range(4):
        step()
    extension("callgrind").toggle()
    step()
    extension("callgrind").toggle()


def collected(call: str) -> int:
    """Instructions between the toggles of a call of this module, in a process under valgrind."""
    command = f"from benchmarks.speed import instructions; instructions.{call}"
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--collect-atstart=no"]
        valgrind.append(f"--callgrind-out-file={folder}/out")
        done = subprocess.run(
            [*valgrind, sys.executable, "-c", command], stderr=subprocess.PIPE, text=True
        )
    total = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or total is None:
        raise RuntimeError(f"callgrind: {done.stderr[-2000:]}")
    return int(total[1])


def instructions(name: str, device: str) -> float:
    return collected(f"count({name!r}, {device!r})") / OPS


def both(name: str) -> tuple[Callable[[], float], Callable[[], float]]:
    extension("callgrind")
    return partial(instructions, name, "spmd"), partial(instructions, name, "cpu")


def step(fused: bool) -> tuple[Callable[[], float], None]:
    extension("callgrind")
    return partial(collected, f"count_step({fused})"), None


def rows() -> list[Row]:
    if shutil.which("valgrind") is None or not HEADER.exists():
        print("no valgrind: instructions are not counted", file=sys.stderr)
        return []
    # The count is the same every time, except for hashing by address.
    row = partial(Row, unit="instr", warm=0, pairs=1)
    return [
        *(row(f"{n}, instructions", c[3], partial(both, n)) for n, c in CHAINS.items()),
        row("GPT-2 step, instructions", None, partial(step, fused=False)),
        row("GPT-2 step, fused AdamW, instructions", None, partial(step, fused=True)),
    ]
