# SPDX-License-Identifier: Apache-2.0
"""Functions that name the devices that they take, for `torch_spmd.integrations`.

Where PyTorch asks a device's module, `torch.spmd` answers (torch_spmd/device/torch_module.py).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from torch_spmd import _compat
from torch_spmd._replace import replace

DEVICE = "spmd"


def flex_attention() -> None:
    """flex_attention consists of ops that run on every device, but checks the device's name."""
    place = _compat.flex_attention_check()
    validate = place.current()

    @functools.wraps(validate)
    def validate_device(query: torch.Tensor, *others: torch.Tensor) -> None:
        if query.device.type != DEVICE:
            validate(query, *others)

    replace(*place, validate_device, "flex_attention()")


def safetensors(module: Any) -> None:
    """Files are read on the CPU; their tensors are moved afterwards."""
    load_file = module.load_file

    @functools.wraps(load_file)
    def load(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, torch.Tensor]:
        if str(device).partition(":")[0] != DEVICE:
            return load_file(filename, device=device, **options)
        read = load_file(filename, device="cpu", **options)
        return {name: tensor.to(device) for name, tensor in read.items()}

    replace(module, "load_file", load, "safetensors()")  # load_model calls it, too


def distribute_tensor(module: Any) -> None:
    """`distribute_tensor` with a mesh of "spmd" marks a tensor of the device."""
    original = module.distribute_tensor
    api: Any = sys.modules["torch.distributed.tensor._api"]

    @functools.wraps(original)
    def distribute(
        tensor: torch.Tensor, device_mesh: Any = None, placements: Any = None, **options: Any
    ) -> Any:
        from torch_spmd import dtensor
        from torch_spmd.sharding.mesh import Mesh

        mesh = _compat.mesh_of_context(device_mesh)
        if not isinstance(mesh, Mesh) and mesh.device_type != DEVICE:
            return original(tensor, mesh, placements, **options)
        return dtensor.distribute_tensor(tensor, mesh, placements)

    for owner in (module, api):
        replace(owner, "distribute_tensor", distribute, "dtensor()")
