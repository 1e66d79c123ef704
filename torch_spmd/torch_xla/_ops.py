# SPDX-License-Identifier: Apache-2.0
"""Ops of the namespace `torch.ops.xla` that scripts call."""

from __future__ import annotations

import ast

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
