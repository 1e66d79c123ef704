# SPDX-License-Identifier: Apache-2.0
"""Plans the run of one row and times it by the model, in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import torch_spmd as spmd
from benchmarks.published.model import training
from benchmarks.published.rows import Row

# The share of the peak that large products reach: what the seconds of a row are sampled at. Between
# samples they are taken to be linear in 1/share, which they are where the order of starts stays.
SHARES = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


@dataclass
class Planned:
    """What planning one row gave. `seconds` are at `SHARES`; `fitted` at the built-in constant."""

    parameters: int
    embedding: int  # parameters of a table that is not the head, too
    devices: int
    peak_flops: float  # per second and device
    fitted: float
    seconds: list[float]
    exposed: float
    hfu: float
    peak_bytes: int
    argument_bytes: int
    plan_seconds: float
    resident_mb: float

    def at(self, share: float) -> float:
        """Seconds a step where large products reach this share of the peak."""
        for i in range(len(SHARES) - 1):
            low, high = SHARES[i], SHARES[i + 1]
            if share <= high or high == SHARES[-1]:
                part = (1 / low - 1 / share) / (1 / low - 1 / high)
                return self.seconds[i] + part * (self.seconds[i + 1] - self.seconds[i])
        raise AssertionError


def plan(row: Row, memory: bool) -> Planned:
    """In this process, whose default backend must not have been used.

    Errors: torch.OutOfMemoryError where `memory` is true and the slice has too little.
    """
    kind = "mock_gpu" if row.on_gpus else "mock_tpu"
    spmd.set_default_backend(f"{kind}:{row.on}:plan" + ("" if memory else ":unlimited"))
    run = training(row)
    start = time.process_time()
    run.step()
    plan_seconds = time.process_time() - start
    parameters = sum(p.numel() for p in run.model.parameters())
    table, held = spmd.debug.timeline(), spmd.debug.memory()
    devices = table.devices if row.spec != "none" else 1
    return Planned(
        parameters,
        0 if row.tied else run.model.embed.numel(),
        devices,
        table.peak_flops,
        table.seconds,
        [spmd.debug.timeline(efficiency=share).seconds for share in SHARES],
        table.exposed_seconds,
        table.hfu,
        held.peak_bytes,
        held.input_bytes,
        plan_seconds,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def plan_apart(row: Row, memory: bool) -> Planned | str:
    """In a process of its own, with as many layers as `row` has; why it failed where it did."""
    command = [sys.executable, "-m", "benchmarks.published", "--plan", row.name]
    command += ["--layers", str(row.layers)]
    done = subprocess.run(
        command + (["--memory"] if memory else []), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return Planned(**json.loads(done.stdout.splitlines()[-1]))
    lines = [line for line in done.stderr.splitlines() if "rror" in line]
    return lines[-1] if lines else f"exit status {done.returncode}"


def print_plan(row: Row, memory: bool) -> None:
    print(json.dumps(asdict(plan(row, memory))))
