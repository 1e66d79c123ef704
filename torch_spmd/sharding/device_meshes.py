# SPDX-License-Identifier: Apache-2.0
"""Meshes of torch.distributed as meshes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_spmd import _arguments, _compat
from torch_spmd.sharding.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def from_device_mesh(device_mesh: DeviceMesh) -> Mesh:
    """A DeviceMesh as a mesh: device r is rank r. Axes without names are "axis0", "axis1", …

    Functions that take a mesh take a DeviceMesh as it is. Of a slice this is the mesh of its ranks
    alone, where those take the mesh of which it is one.

    Errors: TypeError for an argument of another kind; as `Mesh`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.dtensor.to_device_mesh(spmd.make_mesh((2, 2), ("data", "model")))
        >>> print(spmd.dtensor.from_device_mesh(mesh))
        [data=2, model=2] over devices 0..3
    """
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(device_mesh, DeviceMesh):
        raise TypeError(
            "from_device_mesh: device_mesh must be a DeviceMesh; got "
            f"{_arguments.shown(device_mesh)}"
        )
    ids = device_mesh.mesh
    return Mesh(ids.flatten().tolist(), tuple(ids.shape), device_mesh.mesh_dim_names)


def whole_mesh(device_mesh: Any) -> Mesh:
    """The mesh of all devices of which a DeviceMesh is a slice: a tensor that is sharded over the
    slice is replicated over the rest. If the slice has dimensions that are several of the whole
    mesh, or parts of one, the rest is an axis "rest"."""
    root, names = _compat.root_mesh(device_mesh), device_mesh.mesh_dim_names
    if device_mesh is root or set(names) <= set(root.mesh_dim_names):
        return from_device_mesh(root)
    every = _compat.slices_like(device_mesh)
    sizes = tuple(every.shape)
    if sizes[0] == 1:
        return Mesh(every.flatten().tolist(), sizes[1:], names)
    return Mesh(every.flatten().tolist(), sizes, ("rest", *names))
