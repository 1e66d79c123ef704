# SPDX-License-Identifier: Apache-2.0
"""Launching a cached program that has nothing to compute: its tensors have no elements, and one
tile per device. The time includes recording its one op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import torch_spmd as spmd
from benchmarks.speed.measure import Row, cpu_seconds

BACKEND = "cpu"
LAUNCHES = 200


def launch(devices: int) -> tuple[Callable[[], float], None]:
    x = torch.empty(devices, 0).to("spmd")
    mesh = spmd.make_mesh((devices,), ("data",))
    spmd.mark_sharding(x, mesh, ("data", None))

    def step() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)
            spmd.sync()
        spmd.sync(wait=True)

    return cpu_seconds(step, LAUNCHES), None


def rows() -> list[Row]:
    return [Row(f"launch N={n}", 20 + 0.2 * n, partial(launch, n), "µs") for n in (1, 8, 64, 512)]
