# SPDX-License-Identifier: Apache-2.0
"""Whole steps against eager's on the same cores, in CPU-seconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.speed import models
from benchmarks.speed.measure import Row, Step, cpu_seconds

BACKEND = "cpu"


def gpt(plan: str = "dp", **axes: int) -> Callable[[str], Step]:
    sizes = {"batch": 64, "length": 32} if axes.get("data") == 64 else {}
    return partial(models.gpt_step, axes=axes, plan=plan, **sizes)


STEPS: dict[str, Callable[[str], Step]] = {
    "GPT N=1": gpt(),
    "GPT dp N=8": gpt("dp", data=8),
    "GPT tp N=8": gpt("tp", model=8),
    "GPT fsdp N=8": gpt("fsdp", data=8),
    "GPT dp N=64": gpt("dp", data=64),
    "MLP N=64": models.mlp_step,
    "ResNet-18 N=8": models.resnet18_step,
    "GPT decode tp N=8": models.decode_steps,
}
BUDGETS = (1.00, 1.03, 1.06, 1.06, 1.50, 1.50, 1.10, 1.15)


def both(name: str) -> tuple[Callable[[], float], Callable[[], float]]:
    return cpu_seconds(STEPS[name]("spmd")), cpu_seconds(STEPS[name]("cpu"))


def rows() -> list[Row]:
    return [Row(name, budget, partial(both, name)) for name, budget in zip(STEPS, BUDGETS)]
