# SPDX-License-Identifier: Apache-2.0
"""Devices and processes as torch_xla counts them: one process, one logical device, and the devices
of meshes behind it."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch_spmd as spmd

# Tests and scripts of torch_xla ask for the kind of device by this name.
_KIND = "PJRT_DEVICE"


def set_device_type(pjrt_device: str) -> None:
    """Sets what `device_type` returns. The backend is chosen by SPMD_BACKEND."""
    os.environ[_KIND] = pjrt_device


def device_type() -> str:
    """PJRT_DEVICE, else "CPU"."""
    return os.environ.get(_KIND, "CPU").split("_")[0]


def is_bf16_supported() -> bool:
    return True


def use_spmd(auto: bool | None = False) -> None:
    """Switches SPMD on. Tensors that exist already are on the same device, so none is moved.

    With `auto`, the inputs of pending work that nothing has placed are sharded as a search proposes
    for as many H100, or for the machine that the backend simulates, on the mesh of
    XLA_AUTO_SPMD_MESH ("2,4") or on one that is chosen.
    """
    os.environ["XLA_USE_SPMD"] = "1"
    if auto:
        from torch_spmd.torch_xla import _XLAC

        _XLAC._xla_set_auto_sharding()
        os.environ["XLA_AUTO_SPMD"] = "1"


def is_spmd() -> bool:
    return os.environ.get("XLA_USE_SPMD", "0").lower() in ("1", "true", "yes")


def local_process_count() -> int:
    return 1


def global_device_count() -> int:
    """The number of logical devices."""
    return 1


def world_size() -> int:
    return 1


def local_device_count() -> int:
    return 1


def addressable_device_count() -> int:
    return 1


def global_ordinal() -> int:
    return 0


def local_ordinal() -> int:
    return 0


def process_index() -> int:
    return 0


def process_count() -> int:
    return 1


def host_index() -> int:
    return 0


def global_runtime_device_count() -> int:
    """The number of devices that a mesh has."""
    return spmd.config.device_count()


def addressable_runtime_device_count() -> int:
    """The number of devices that a mesh has: all belong to this process."""
    return spmd.config.device_count()


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """The name of each device. Virtual devices on a CPU have no coordinates."""
    return [
        runtime_device_attributes(f"{device_type()}:{d}") for d in range(spmd.config.device_count())
    ]


def runtime_device_attributes(device: str) -> dict[str, Any]:
    return {"name": device}


def get_master_ip() -> str:
    """This host's own address: there is one process."""
    return "127.0.0.1"


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Warns: programs are not kept for another process.

    Errors: AssertionError if a program has run already.
    """
    assert spmd._C.statistics()["runs"] == 0, "Computation cache has already been initialized"
    warnings.warn(
        f"initialize_cache: {path!r} is not used; compiled programs live as long as the process",
        stacklevel=2,
    )


def get_num_cached_compilation_graph() -> int:
    """How many programs are kept in memory."""
    return int(spmd._C.sizes()["programs"])
