# SPDX-License-Identifier: Apache-2.0
"""What another compiler must know about a workload: sizes and specs, read from the workload itself.

Plain dicts, so that they pass between processes as JSON: a leaf is `{"shape": [8, 256], "dtype":
"int64", "spec": ["data", None]}`, where an entry of a spec is None, an axis or a list of axes.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

import torch_spmd as spmd
from benchmarks.workloads import WORKLOADS, Workload

Description = dict[str, Any]


def leaf(t: Tensor) -> Description:
    spec = [
        list(entry) if isinstance(entry, tuple) else entry for entry in spmd.sharding_of(t).spec
    ]
    return {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "spec": spec}


def sizes(name: str) -> dict[str, int]:
    """The constants of the module that defines the workload: `{"LAYERS": 6, …}`."""
    module = importlib.import_module(WORKLOADS[name].__module__)
    return {k: v for k, v in vars(module).items() if k.isupper() and isinstance(v, int)}


def moments(workload: Workload) -> list[dict[str, Description]]:
    """The two running means of AdamW, by parameter; none for SGD."""
    if not isinstance(workload.optimizer, torch.optim.AdamW):
        return []
    state = workload.optimizer.state
    named = dict(workload.model.named_parameters())
    return [
        {name: leaf(state[parameter][moment]) for name, parameter in named.items()}
        for moment in ("exp_avg", "exp_avg_sq")
    ]


def describe(name: str, workload: Workload) -> Description:
    """Requires: a step has been taken, so that the optimizer has its state."""
    options = workload.optimizer.defaults
    return {
        "mesh": dict(workload.mesh.shape),
        "sizes": sizes(name),
        "parameters": {n: leaf(p) for n, p in workload.model.named_parameters()},
        "inputs": {n: leaf(t) for n, t in workload.inputs.items()},
        "moments": moments(workload),
        "optimizer": {
            option: options[option]
            for option in ("lr", "betas", "eps", "weight_decay")
            if option in options
        },
    }
