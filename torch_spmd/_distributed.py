# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed is told about the device: hooks into groups and into checkpoints."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def install() -> None:
    """Called once, when the device is registered."""
    if not torch.distributed.is_available():
        return
    _communicate_on_the_host()
    _refuse_late_groups()
    for name in _ForOurs.NAMES:
        setattr(Tensor, name, _ForOurs(name))


def _communicate_on_the_host() -> None:
    """`init_process_group()` without a backend makes the group that it makes without this device.

    PyTorch would look for a communication backend of the device `spmd`, which has none, and whose
    group would be of no use for tensors on the host."""
    from torch.distributed import distributed_c10d as c10d

    config: Any = c10d.BackendConfig
    init = config.__init__

    @functools.wraps(init)
    def on_the_host(self: Any, backend: Any) -> None:
        if str(backend) == c10d.Backend.UNDEFINED and torch._C._get_accelerator().type == "spmd":
            on_gpus = torch.cuda.is_available() and torch.distributed.is_nccl_available()
            backend = "cpu:gloo,cuda:nccl" if on_gpus else "cpu:gloo"
        init(self, backend)

    config.__init__ = on_the_host


def _refuse_late_groups() -> None:
    """A process that has used the device alone cannot share it afterwards."""
    from torch.distributed import distributed_c10d as c10d

    make: Any = c10d._new_process_group_helper

    @functools.wraps(make)
    def checked(group_size: int, *args: Any, **kwargs: Any) -> Any:
        from torch_spmd import _C

        backend = kwargs.get("backend", args[2] if len(args) > 2 else "")
        first = not torch.distributed.is_initialized() and str(backend) != "fake"
        if group_size > 1 and first and _C.works_alone():
            raise RuntimeError(
                "init_process_group: this process has used the device spmd already, and works "
                "alone since then. Call init_process_group before the first tensor is on the "
                "device; or set SPMD_DISTRIBUTED=0, with which each process works alone"
            )
        return make(group_size, *args, **kwargs)

    c10d._new_process_group_helper = checked


class _ForOurs:
    """A method by which torch.distributed.checkpoint asks a tensor for its parts, as it asks a
    DTensor. Tensors have it if they are on the device."""

    NAMES = ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__")

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tensor: Tensor | None, kind: type) -> Any:
        if tensor is None:
            return self  # torch.compile asks the class for all that dir() names
        if tensor.device.type == "spmd":
            from torch_spmd._state import dcp_parts

            return functools.partial(getattr(dcp_parts, self._name.strip("_")), tensor)
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self._name!r}")

    def __set__(self, tensor: Tensor, value: Any) -> None:
        """As of a read-only property: torch.overrides takes every descriptor for a property."""
        raise AttributeError(f"attribute {self._name!r} of a tensor is not writable")
