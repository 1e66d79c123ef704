# SPDX-License-Identifier: Apache-2.0
"""Compiling a GPT-2 training step: lowering, propagation, partition, loading."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch_spmd as spmd
from benchmarks.speed.measure import Row
from benchmarks.speed.models import GPT2, gpt_step

BACKEND = "mock_tpu:v4-16:plan"


def compile_step(axes: dict[str, int], plan: str) -> tuple[Callable[[], float], None]:
    """Each call compiles for another length of sequence, so that nothing is cached. The first step
    makes the optimizer's state; the second is the one that counts."""
    length = iter(range(GPT2.block, 4 * GPT2.block))
    config = dataclasses.replace(GPT2, block=4 * GPT2.block)

    def timed() -> float:
        step = gpt_step("spmd", config, batch=8, length=next(length), axes=axes, plan=plan)
        step(), step()
        event = spmd.debug.explain_compile().rows[-1]
        return float(event.milliseconds) / 1e3

    return timed, None


def rows() -> list[Row]:
    return [
        Row(f"compile GPT-2, {plan}", 0.5, partial(compile_step, axes, plan), "s", warm=1)
        for plan, axes in (("dp", {}), ("dp", {"data": 8}), ("tp", {"model": 8}))
    ]
