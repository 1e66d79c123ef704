# SPDX-License-Identifier: Apache-2.0
"""Names of torch_spmd 0.1 that are elsewhere now. They go with the release after the next."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

_MOVED = {
    "CheckpointError": "checkpoint.CheckpointError",
    "Checkpointer": "checkpoint.Checkpointer",
    "LoadReport": "checkpoint.LoadReport",
    "RandomState": "checkpoint.RandomState",
    "Saving": "checkpoint.Saving",
    "all_gather": "lax.all_gather",
    "all_to_all": "lax.all_to_all",
    "answers": "planning.assume",
    "auto_shard": "planning.auto_shard",
    "axis_index": "lax.axis_index",
    "axis_size": "lax.axis_size",
    "describe_devices": "config.describe_devices",
    "device_count": "config.device_count",
    "distribute_tensor": "dtensor.distribute_tensor",
    "from_device_mesh": "dtensor.from_device_mesh",
    "from_dtensor": "dtensor.from_dtensor",
    "from_process_local": "processes.from_process_local",
    "last_load": "checkpoint.last_load",
    "local_devices": "processes.local_devices",
    "local_map": "dtensor.local_map",
    "manual_seed": "config.manual_seed",
    "pbroadcast": "lax.pbroadcast",
    "pipeline": "nn.pipeline",
    "pmax": "lax.pmax",
    "pmean": "lax.pmean",
    "pmin": "lax.pmin",
    "ppermute": "lax.ppermute",
    "process_count": "processes.process_count",
    "process_index": "processes.process_index",
    "pshuffle": "lax.pshuffle",
    "psum": "lax.psum",
    "psum_scatter": "lax.psum_scatter",
    "pvary": "lax.pvary",
    "ragged_all_to_all": "lax.ragged_all_to_all",
    "remat": "lax.remat",
    "set_default_backend": "config.set_backend",
    "shard_size": "lax.shard_size",
    "to_device_mesh": "dtensor.to_device_mesh",
    "to_dtensor": "dtensor.to_dtensor",
}
_SWITCHES = {  # functions of one argument: the setting that it is now
    "set_coalescing": "coalesce",
    "set_deduplication": "deduplicate",
    "set_memory_limit": "memory_limit",
}


def find(name: str) -> Any:
    """What `torch_spmd.<name>` was. Errors: AttributeError for any other name."""
    if name in _SWITCHES:
        new = f"config.update({_SWITCHES[name]}=…)"
    elif name in _MOVED:
        new = _MOVED[name]
    else:
        raise AttributeError(f"module 'torch_spmd' has no attribute {name!r}")
    text = f"torch_spmd: spmd.{name} is now spmd.{new}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    if name in _SWITCHES:
        return functools.partial(_switch, _SWITCHES[name])
    module, _, attribute = new.partition(".")
    return getattr(importlib.import_module(f"torch_spmd.{module}"), attribute)


def _switch(setting: str, value: Any) -> None:
    importlib.import_module("torch_spmd.config").update(**{setting: value})


def plan_of_hf(name: str) -> Any:
    """As `find`, of `torch_spmd.hf`."""
    new = {"plan": "shard_model", "PlanReport": "ShardReport"}.get(name)
    if new is None:
        raise AttributeError(f"module 'torch_spmd.hf' has no attribute {name!r}")
    text = f"torch_spmd: spmd.hf.{name} is now spmd.{'hf.' if name == 'plan' else ''}{new}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module("torch_spmd.hf"), new)
