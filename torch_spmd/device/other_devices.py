# SPDX-License-Identifier: Apache-2.0
"""What PyTorch would do otherwise on other devices, once it finds this accelerator."""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_spmd import _compat
from torch_spmd._replace import replace

DEVICE = "spmd"


def install() -> None:
    """Called once, when the device is registered."""
    _data_parallel()
    if torch.distributed.is_available():
        _communicate_on_the_host()
        _meshes_of_devices()


def _data_parallel() -> None:
    """nn.DataParallel would make a replica for each accelerator, of modules on the CPU, too, but
    there is one logical device. It is the module itself, as without accelerators."""
    place = _compat.data_parallel_device()
    available = place.current()

    @functools.wraps(available)
    def other_than_ours() -> str | None:
        kind: str | None = available()
        return None if kind == DEVICE else kind

    why = "nn.DataParallel is the module itself, as without accelerators"
    replace(*place, other_than_ours, why)


def _communicate_on_the_host() -> None:
    """PyTorch would look for a communication backend of this device, which has none, and whose
    group would be of no use for tensors on the host."""
    from torch.distributed import distributed_c10d as c10d

    config: Any = c10d.BackendConfig
    init = config.__init__

    @functools.wraps(init)
    def on_the_host(self: Any, backend: Any) -> None:
        accelerator = torch.accelerator.current_accelerator()
        ours = accelerator is not None and accelerator.type == DEVICE
        if str(backend) == c10d.Backend.UNDEFINED and ours:
            on_gpus = torch.cuda.is_available() and torch.distributed.is_nccl_available()
            backend = "cpu:gloo,cuda:nccl" if on_gpus else "cpu:gloo"
        init(self, backend)

    why = "init_process_group() makes the group that it makes without this device"
    replace(config, "__init__", on_the_host, why)


def _meshes_of_devices() -> None:
    """A DeviceMesh has a rank for each process, and makes process groups. One of this device has a
    rank for each device, whatever the number of processes, and no groups: a subclass, which PyTorch
    gives no way to name for a device."""
    from torch.distributed import device_mesh

    kind: Any = device_mesh.DeviceMesh

    def new(cls: type, device_type: Any = None, *args: Any, **options: Any) -> Any:
        ours = cls is kind and device_type == DEVICE
        return object.__new__(_compat.mesh_of_devices() if ours else cls)

    why = 'init_device_mesh("spmd", …) makes a mesh of devices, which needs no process group'
    replace(kind, "__new__", new, why)
