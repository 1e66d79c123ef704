# SPDX-License-Identifier: Apache-2.0
"""DTensor's way of asking: a DeviceMesh and one placement for each of its axes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate

import torch_spmd as spmd
from torch_spmd.torch_xla import runtime
from torch_spmd.torch_xla._sharding_type import ShardingType
from torch_spmd.torch_xla.core import xla_model
from torch_spmd.torch_xla.distributed.spmd import _auto
from torch_spmd.torch_xla.distributed.spmd.mesh import Mesh
from torch_spmd.torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor
from torch_spmd.torch_xla.distributed.spmd.xla_sharding import mark_sharding


def auto_policy(mod_name: str, mod: nn.Module, mesh: Any) -> None:
    """Given as `partition_fn`: `xla_distribute_module` lets a search choose the specs."""


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """Errors: AssertionError unless the mesh has all devices."""
    runtime.use_spmd()
    assert dt_mesh.size() == runtime.global_runtime_device_count(), (
        f"the DeviceMesh has {dt_mesh.size()} devices, and there are "
        f"{runtime.global_runtime_device_count()}"
    )
    ids = np.array(dt_mesh.mesh.flatten().tolist())
    return Mesh(ids, tuple(dt_mesh.mesh.size()), dt_mesh.mesh_dim_names)


def convert_to_xla_partition_spec(
    tensor: Tensor, placements: Sequence[Placement]
) -> tuple[Any, ...]:
    """The spec for one placement per axis of a mesh: [Replicate(), Shard(0)] is (1, None) for a
    matrix; two shards of one dimension are a tuple, major first.

    Errors: ValueError for another kind of placement.
    """
    axes: list[list[int]] = [[] for _ in tensor.shape]
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            axes[placement.dim].append(axis)  # type: ignore[attr-defined]
        elif not placement.is_replicate():
            raise ValueError(f"Unsupported placement type: {type(placement).__name__}")
    return tuple(
        None if not entry else entry[0] if len(entry) == 1 else tuple(entry) for entry in axes
    )


def xla_distribute_tensor(
    tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> XLAShardedTensor:
    """Moves a tensor to the device and marks it; without placements it is replicated.

    `torch.distributed.tensor.distribute_tensor` with a DeviceMesh of "xla" calls it.

    Errors: ValueError for a DTensor; AssertionError for a tensor with another mark, another number
    of placements, or a mesh that does not have all devices.
    """
    assert device_mesh.device_type == "xla", f"device_mesh is of {device_mesh.device_type!r}"
    mesh = convert_to_xla_mesh(device_mesh)
    placements = placements or [Replicate()] * device_mesh.ndim
    assert len(placements) == device_mesh.ndim, (
        f"`placements` must have the same length as `device_mesh.ndim`! {len(placements)} were "
        f"given for {device_mesh.ndim}"
    )
    if type(tensor).__name__ == "DTensor":
        raise ValueError("Cannot distribute a DTensor with local tensor on xla devices.")
    if isinstance(tensor, XLAShardedTensor):
        assert tensor.sharding_type in (None, ShardingType.REPLICATED), (
            "XLAShardedTensor `tensor` is already annotated with non-replication sharding; "
            "xs.clear_sharding(tensor) removes it"
        )
        tensor = tensor.global_tensor
    elif not tensor.is_meta and not xla_model.is_xla_tensor(tensor):
        needs_gradient = tensor.requires_grad
        tensor = tensor.detach().to("spmd").requires_grad_(needs_gradient)
    spec = convert_to_xla_partition_spec(tensor, placements)
    marked = mark_sharding(tensor, mesh, spec)
    if tensor.requires_grad:
        marked.requires_grad_(True)
    return marked


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[..., None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Calls `partition_fn(name, module, device_mesh)` for each module, which marks parameters, and
    installs `input_fn(module, inputs, device_mesh)` and `output_fn(module, outputs, device_mesh)`.

    With `auto_policy` the module moves to the device. When it is called for the first time, its
    parameters and the inputs get the specs that `planning.auto_shard` proposes for such a call.

    Errors: ValueError for functions with another number of parameters.
    """
    runtime.use_spmd()
    if partition_fn is auto_policy:
        assert not any(map(xla_model.is_xla_tensor, module.parameters())), (
            "Currently requires module to be on cpu, before xla_distribute_module."
        )
        runtime.use_spmd(auto=True)
        module = module.to("spmd")
        _auto.shard_when_called(module, None if device_mesh is None else _mesh_of(device_mesh))
    elif partition_fn is not None:
        for name, child in module.named_modules():
            partition_fn(name, child, device_mesh)
    if input_fn is not None:
        on_inputs = _with_module("input_fn", input_fn, device_mesh)
        module.register_forward_pre_hook(on_inputs)
    if output_fn is not None:
        on_outputs = _with_module("output_fn", output_fn, device_mesh)
        module.register_forward_hook(lambda its, inputs, outputs: on_outputs(its, outputs))
    return module


def _mesh_of(device_mesh: DeviceMesh) -> spmd.Mesh:
    ids = device_mesh.mesh.flatten().tolist()
    return spmd.Mesh(ids, tuple(device_mesh.mesh.shape), device_mesh.mesh_dim_names)


def _with_module(name: str, function: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
    count = len(inspect.signature(function).parameters)
    if count == 3:
        return lambda module, values: function(module, values, mesh)
    if count != 2:
        raise ValueError(f"{name} should take in 3 arguments, but got {count} arguments!")
    warnings.warn(
        f"{name} takes (values, device_mesh), which is deprecated; take (module, values, "
        "device_mesh)",
        DeprecationWarning,
        stacklevel=3,
    )
    return lambda module, values: function(values, mesh)
