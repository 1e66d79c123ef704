# SPDX-License-Identifier: Apache-2.0
"""Whole steps against eager's on the same cores, in CPU-seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.speed import models
from benchmarks.speed.measure import Row, Step, cpu_seconds

BACKEND = "cpu"


def gpt(plan: str = "dp", **axes: int) -> Callable[[str], Step]:
    sizes = {"batch": 64, "length": 32} if axes.get("data") == 64 else {}
    return partial(models.gpt_step, axes=axes, plan=plan, **sizes)


def tile_by_tile(make: Callable[[str], Step]) -> Callable[[str], Step]:
    """The same step, tile by tile."""

    def prepare(device: str) -> Step:
        step = make(device)

        if device != "spmd":
            return step

        import torch_spmd as spmd

        def run() -> None:
            spmd.config.update(coalesce=False)
            try:
                step()
            finally:
                spmd.config.update(coalesce=True)

        return run

    return prepare


@dataclass(frozen=True)
class Workload:
    """A step and its budgets of time and memory, relative to eager's."""

    make: Callable[[str], Step]
    time: float
    memory: float = 1.05


STEPS: dict[str, Workload] = {
    "GPT N=1": Workload(gpt(), 1.02),
    "GPT dp N=8": Workload(gpt("dp", data=8), 1.10, 0.75),
    "GPT tp N=8": Workload(gpt("tp", model=8), 1.10),
    "GPT fsdp N=8": Workload(gpt("fsdp", data=8), 1.10),
    "GPT dp N=64": Workload(gpt("dp", data=64), 1.15, 0.75),
    "GPT 2d N=8×8": Workload(gpt("2d", data=8, model=8), 1.15),
    "MLP N=64": Workload(models.mlp_step, 1.50),
    "ResNet-18 N=8": Workload(models.resnet18_step, 1.15),
    "GPT decode tp N=8": Workload(models.decode_steps, 1.20),
    "tiles, GPT dp N=8": Workload(tile_by_tile(gpt("dp", data=8)), 1.03, 0.75),
    "tiles, GPT tp N=8": Workload(tile_by_tile(gpt("tp", model=8)), 1.06),
    "tiles, GPT fsdp N=8": Workload(tile_by_tile(gpt("fsdp", data=8)), 1.06),
    "tiles, GPT dp N=64": Workload(tile_by_tile(gpt("dp", data=64)), 1.50, 0.75),
    "tiles, GPT 2d N=8×8": Workload(tile_by_tile(gpt("2d", data=8, model=8)), 1.50),
}


def both(name: str) -> tuple[Callable[[], float], Callable[[], float]]:
    make = STEPS[name].make
    return cpu_seconds(make("spmd")), cpu_seconds(make("cpu"))


def rows() -> list[Row]:
    return [
        Row(name, workload.time, partial(both, name), elapsed=True)
        for name, workload in STEPS.items()
    ]
