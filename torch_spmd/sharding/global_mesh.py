# SPDX-License-Identifier: Apache-2.0
"""The mesh that is used where none is given, and meshes of torch.distributed as arguments."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch_spmd import _C, _arguments, _compat
from torch_spmd.sharding.device_meshes import whole_mesh
from torch_spmd.sharding.mesh import (
    Mesh,
)

# The global mesh is kept in PyTorch's own thread-local state, which autograd passes on to the
# thread that runs backward, if that is another one; Python's context variables would not get there.
# It passes on a copy, with the name, three times for each node of a backward pass. So the name is
# one that is copied without an allocation, and nothing is kept where there is no mesh.
_KEY = "spmd.mesh"


def get_global_mesh() -> Mesh | None:
    """The mesh that is used where a mesh argument is omitted, or None.

    Example:
        >>> import torch_spmd as spmd
        >>> with spmd.use_mesh(spmd.make_mesh((8,), ("x",))):
        ...     spmd.get_global_mesh().axis_names
        ('x',)
    """
    if not _compat.core._is_key_in_tls(_KEY):
        return None
    mesh: Mesh | None = _compat.core._get_obj_in_tls(_KEY)
    return mesh


def set_global_mesh(mesh: Mesh | None) -> None:
    """Sets the mesh that is used where a mesh argument is omitted; None means that there is none.

    Errors: TypeError if it is neither a Mesh, nor a DeviceMesh, nor None.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.set_global_mesh(spmd.make_mesh((8,), ("x",)))
        >>> spmd.set_global_mesh(None)
    """
    mesh = read_mesh(mesh)
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(
            f"set_global_mesh: mesh must be a Mesh or None; got {_arguments.shown(mesh)}"
        )
    if mesh is not None or not _compat.remove_from_tls(_KEY):
        _C.keep_in_thread(_KEY, mesh)


def use_mesh(mesh: Mesh) -> contextlib.AbstractContextManager[Mesh]:
    """`with use_mesh(mesh):` sets the global mesh for a block of code.

    Errors: TypeError at once if it is neither a Mesh nor a DeviceMesh.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> with spmd.use_mesh(spmd.make_mesh((8,), ("x",))):
        ...     t = spmd.mark_sharding(torch.ones(16, device="spmd"), spec=("x",))
    """
    mesh = read_mesh(mesh)
    if not isinstance(mesh, Mesh):
        raise TypeError(f"use_mesh: mesh must be a Mesh; got {_arguments.shown(mesh)}")
    return _using(mesh)


@contextlib.contextmanager
def _using(mesh: Mesh) -> Iterator[Mesh]:
    before = get_global_mesh()
    set_global_mesh(mesh)
    try:
        yield mesh
    finally:
        set_global_mesh(before)


def read_mesh(mesh: Any) -> Any:
    """A DeviceMesh as a mesh, that of which it is a slice; anything else as it is."""
    if mesh is None or isinstance(mesh, Mesh):
        return mesh
    device_meshes: Any = sys.modules.get("torch.distributed.device_mesh")
    if device_meshes is None or not isinstance(mesh, device_meshes.DeviceMesh):
        return mesh
    return whole_mesh(mesh)


def only_axis(mesh: Any) -> str | None:
    """The axis of a DeviceMesh of one dimension, such as `device_mesh["tp"]`; otherwise None."""
    if mesh is None or isinstance(mesh, Mesh):
        return None
    names = getattr(mesh, "mesh_dim_names", None)
    return str(names[0]) if names and len(names) == 1 else None


def mesh_or_global(caller: str, mesh: Any, name: str = "mesh") -> Mesh:
    """`mesh`, the caller's argument `name`, or the global one. A DeviceMesh is one, too.

    Errors: ValueError if there is neither; TypeError.
    """
    if mesh is None:
        mesh = get_global_mesh()
        if mesh is None:
            raise ValueError(
                f"{caller}: no mesh was given and there is no global one; pass a {name}, or call "
                "it inside `with spmd.use_mesh(mesh):`"
            )
    mesh = read_mesh(mesh)
    if not isinstance(mesh, Mesh):
        where = caller if name == "mesh" else f"{caller}: {name}"
        raise TypeError(f"{where}: expected a Mesh, got {_arguments.shown(mesh)}")
    current = str(_C.backend_name())
    if mesh.backend != current:
        raise ValueError(
            f"{caller}: mesh {mesh} is over backend {mesh.backend!r}, but this process's tensors "
            f"are on backend {current!r}, and all meshes of a graph share one; create the mesh "
            "again with spmd.make_mesh"
        )
    return mesh
