# SPDX-License-Identifier: Apache-2.0
"""Our side: plans a workload once, and reports the time and what another compiler must know."""

from __future__ import annotations

import time
from typing import Any

import torch

import torch_spmd as spmd
from benchmarks.oracle import last_figures
from benchmarks.peers.conversation import Message, serve
from benchmarks.peers.described import describe
from benchmarks.workloads import WORKLOADS

BACKEND = "mock_tpu:v4-16:plan"


def greet() -> Message:
    """Does what is done once per process, before anything is measured."""
    spmd.config.set_backend(BACKEND)
    model = torch.nn.Linear(8, 8).to("spmd")
    model(torch.ones(8, 8, device="spmd")).square().mean().backward()
    torch.optim.SGD(model.parameters()).step()
    spmd.sync()
    return {}


def answer(workload: str, annotated: bool) -> dict[str, Any]:
    """`step`: CPU-seconds of the step that compiled the last program: recording it and compiling
    it. `compile`: seconds of that for lowering, propagation, partition and loading, on one thread:
    the wall time, but no more than the CPU-seconds of the step, which a busy machine does not
    lengthen.

    Errors: ValueError if this process has compiled the program before.
    """
    made = WORKLOADS[workload](annotated)
    spmd.sync(wait=True)  # everything is on the devices before the step
    step = 0.0
    for _ in range(2):  # the optimizer creates its state in the first step
        known, before = len(spmd.debug.explain_compile().rows), time.process_time()
        made.step()
        spmd.sync()
        if len(spmd.debug.explain_compile().rows) > known:
            step = time.process_time() - before
    if step == 0:
        raise ValueError(f"'{workload}' was compiled in this process before: nothing to measure")
    figures = last_figures()
    return {
        "step": step,
        "compile": min(figures.milliseconds / 1e3, step),
        "mb": figures.mb,
        "instructions": figures.instructions,
        "description": describe(workload, made),
    }


if __name__ == "__main__":
    serve(greet, answer)
