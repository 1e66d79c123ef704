# SPDX-License-Identifier: Apache-2.0
"""Our side and eager PyTorch's, in one process."""

from __future__ import annotations

from collections.abc import Callable

import torch

import torch_spmd as spmd
from benchmarks.peers.conversation import Message, serve
from benchmarks.peers.described import describe
from benchmarks.peers.steps.rows import CASES, LAUNCHES, PER_DEVICE, Case
from benchmarks.peers.steps.timed import timed
from benchmarks.workloads import WORKLOADS, Workload
from benchmarks.workloads.host import on_the_host

sides: dict[str, Callable[[], None]] = {}


def greet() -> Message:
    return {"torch": torch.__version__}


def training(workload: Workload) -> Callable[[], None]:
    def step() -> None:
        workload.step().detach().cpu()

    return step


def launches(devices: int) -> dict[str, Callable[[], None]]:
    def side(device: str) -> Callable[[], None]:
        x = torch.zeros(devices * PER_DEVICE).to(device)
        if device == "spmd":
            spmd.mark_sharding(x, spmd.make_mesh((devices,), ("data",)), ("data",))

        def step() -> None:
            for _ in range(LAUNCHES):
                x.add_(1)
                if device == "spmd":
                    spmd.sync()
            spmd.sync(wait=True)

        return step

    return {"ours": side("spmd"), "eager": side("cpu")}


def make(case: Case) -> Message:
    """Both sides; for a workload also what another compiler must know."""
    sides.clear()
    if case.workload is None:
        sides.update(launches(case.devices))
        return {}
    build = WORKLOADS[case.workload]
    torch.manual_seed(0)
    made = build(False, **case.options)
    torch.manual_seed(0)
    with on_the_host():
        eager = build(False, **case.options)
    sides.update(ours=training(made), eager=training(eager))
    sides["ours"]()  # the optimizer creates its state
    return {"description": describe(case.workload, made)}


def answer(*, row: str | None = None, run: str | None = None) -> Message:
    """Creates a row, or times one step of it on one side."""
    if row is not None:
        return make(CASES[row])
    assert run is not None
    return timed(sides[run])


if __name__ == "__main__":
    serve(greet, answer)
