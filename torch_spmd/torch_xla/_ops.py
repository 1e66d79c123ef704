# SPDX-License-Identifier: Apache-2.0
"""Ops of the namespace `torch.ops.xla` that scripts call."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("xla::dynamo_mark_sharding", mutates_args=("t",))
def dynamo_mark_sharding(
    t: Tensor, device_ids: list[int], mesh_shape: list[int], axis_names: str, partition_spec: str
) -> None:
    """Marks a tensor in place, also in a traced graph."""
    from torch_spmd.torch_xla.distributed.spmd import xla_sharding

    mesh = xla_sharding.Mesh(device_ids, tuple(mesh_shape), ast.literal_eval(axis_names))
    xla_sharding.mark_sharding(t, mesh, ast.literal_eval(partition_spec))


@dynamo_mark_sharding.register_fake
def _(
    t: Tensor, device_ids: list[int], mesh_shape: list[int], axis_names: str, partition_spec: str
) -> None:
    return None


def _placement(name: str) -> Any:
    """An op of one tensor that keeps it where it is. Its gradient is its result's."""

    @torch.library.custom_op(f"xla::{name}", mutates_args=())
    def place(t: Tensor) -> Tensor:
        return t.clone()

    @place.register_fake
    def _(t: Tensor) -> Tensor:
        return torch.empty_like(t)

    place.register_autograd(lambda context, gradient: gradient)
    place.__doc__ = "A copy of the tensor, on the device: memory of the host is not used."
    return place


place_to_host = _placement("place_to_host")
place_to_device = _placement("place_to_device")


@torch.library.custom_op("xla::dynamo_set_buffer_donor_", mutates_args=("t",))
def dynamo_set_buffer_donor_(t: Tensor, should_donate: bool) -> None:
    """As `_XLAC._set_buffer_donation`."""
    from torch_spmd.torch_xla import _XLAC

    _XLAC._set_buffer_donation(t, should_donate)


@dynamo_set_buffer_donor_.register_fake
def _(t: Tensor, should_donate: bool) -> None:
    return None
