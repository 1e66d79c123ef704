# SPDX-License-Identifier: Apache-2.0
"""What is run on all sides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A training step of a workload, or launches of small programs (`workload` is None).

    `options` are passed to the function that creates the workload. XLA's process has `devices`
    devices.
    """

    workload: str | None
    devices: int
    options: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "GPT N=1": Case("gpt_dp", 1, {"devices": 1}),
    "GPT dp N=8": Case("gpt_dp", 8),
    "GPT tp N=8": Case("gpt_tp", 8),
    "GPT fsdp N=8": Case("gpt_fsdp", 8),
    "GPT dp N=64": Case("gpt_dp", 64, {"devices": 64}),
    "MLP N=64": Case("mlp", 64, {"batch": 64, "mesh_shape": (16, 4)}),
    "ResNet-50 N=8": Case("resnet50", 8, {"batch": 16, "size": 64}),
    "launch N=1": Case(None, 1),
    "launch N=8": Case(None, 8),
    "launch N=64": Case(None, 64),
}

LAUNCHES = 200
PER_DEVICE = 8  # floats of the tensor that a launch adds 1 to
