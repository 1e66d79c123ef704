# SPDX-License-Identifier: Apache-2.0
"""Plans the run of one row and times it by the model, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

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
    spmd.config.set_backend(f"{kind}:{row.on}:plan" + ("" if memory else ":unlimited"))
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
    """In a process of its own, forked from one that has loaded PyTorch; why it failed where it
    did."""
    context = multiprocessing.get_context("forkserver")
    # What optimizers import takes as long as all else.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_plan, args=(sender, row, memory))
    process.start()
    sender.close()
    try:
        planned: Planned | str = receiver.recv()
        process.join()
    except EOFError:
        process.join()
        planned = f"exit status {process.exitcode}"
    return planned


def _send_plan(sender: Connection, row: Row, memory: bool) -> None:
    try:
        sender.send(plan(row, memory))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}".splitlines()[0])
