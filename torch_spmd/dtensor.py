# SPDX-License-Identifier: Apache-2.0
"""DTensors and device meshes of torch.distributed, to and from tensors and meshes of the device.

A mesh of 2 × 4 devices is a DeviceMesh of 2 × 4 ranks; rank r holds what device r holds. Placements
name a dimension per axis of the mesh, a spec names axes per dimension of the tensor:

    P("model", "data")            [Shard(1), Shard(0)]
    P(("data", "model"), None)    [Shard(0), Shard(0)]
    P(("model", "data"), None)    [_StridedShard(0, split_factor=4), Shard(0)]
    P(blocks(3, "model"), None)   [Replicate(), _StridedShard(0, split_factor=3)]

A `_StridedShard` on an axis says into how many parts its dimension is cut before: by axes that
stand further right, which are major then, and by blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_spmd import _arguments, _compat
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_sharding, sharding_of
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.shards import local_shards
from torch_spmd.sharding.spec import PartitionSpec, blocks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement
from torch_spmd.regions.local import local_map
from torch_spmd.sharding.device_meshes import from_device_mesh

__all__ = [
    "distribute_tensor",
    "from_device_mesh",
    "from_dtensor",
    "local_map",
    "to_device_mesh",
    "to_dtensor",
]

DEVICE = "spmd"


def to_device_mesh(mesh: Mesh, device_type: str = DEVICE) -> DeviceMesh:
    """The mesh as torch.distributed's: rank r is device r, axes keep their order and names.

    Args:
        mesh: the mesh.
        device_type: "spmd" is for `distribute_tensor`, and needs no process group. "cpu" is for
            DTensors; it needs a group in which there is a rank for every device.

    Errors: TypeError for an argument of another kind; what DeviceMesh raises.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.dtensor.to_device_mesh(spmd.make_mesh((2, 4), ("data", "model")))
        >>> mesh.mesh_dim_names, tuple(mesh.mesh.shape)
        (('data', 'model'), (2, 4))
    """
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, Mesh):
        raise TypeError(f"to_device_mesh: mesh must be a Mesh; got {_arguments.shown(mesh)}")
    kind = _arguments.text("to_device_mesh", "device_type", device_type)
    with torch.device("cpu"):
        ids = torch.tensor(mesh.device_ids, dtype=torch.int, device="cpu").reshape(mesh.mesh_shape)
    make: Any = _compat.mesh_of_devices() if kind == DEVICE else DeviceMesh
    made: DeviceMesh = make(kind, ids, mesh_dim_names=mesh.axis_names)
    return made


def distribute_tensor(
    t: Tensor, mesh: Mesh | DeviceMesh | None, placements: Sequence[Placement] | None = None
) -> Tensor:
    """Moves a tensor to the device, if it is elsewhere, and shards it as DTensor's placements say.

    The result is a plain tensor with a mark. `torch.distributed.tensor.distribute_tensor` does the
    same for a mesh of "spmd" behind `spmd.integrations.dtensor()`.

    Args:
        t: a tensor on any device; a Parameter stays one.
        mesh: the mesh; None means the global one.
        placements: `Shard`, `_StridedShard` or `Replicate` per axis; None replicates. Over axes of
            which a DeviceMesh is no slice it is replicated.

    Errors:
        TypeError: an argument of another kind; a DTensor, for which there is `from_dtensor`.
        ValueError: another number of placements than axes; `Partial`; a dimension that the tensor
            does not have; a `_StridedShard` that no spec says; as `mark_sharding`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch.distributed.tensor import Replicate, Shard
        >>> mesh = spmd.make_mesh((2, 4), ("data", "model"))
        >>> w = spmd.dtensor.distribute_tensor(
        ...     torch.ones(16, 8), mesh, [Replicate(), Shard(0)]
        ... )
        >>> spmd.sharding_of(w).spec
        P('model', None)
    """
    from torch.distributed.tensor import DTensor, Replicate

    caller = "distribute_tensor"
    if isinstance(t, DTensor):
        raise TypeError("distribute_tensor: t is a DTensor; write spmd.dtensor.from_dtensor(t)")
    if not isinstance(t, Tensor):
        raise TypeError(f"{caller}: t must be a tensor; got {_arguments.shown(t)}")
    _arguments.check_dense(caller, t)
    axes = None if mesh is None or isinstance(mesh, Mesh) else _axes_of_slice(mesh)
    mesh = mesh_or_global(caller, mesh)
    given: Any = [Replicate() for _ in mesh.axis_names] if placements is None else placements
    if axes is not None and placements is not None:
        given = _on_all_axes(caller, mesh, axes, placements)
    spec = _spec(caller, mesh, given, tuple(t.shape), partial=False)
    if t.device.type != DEVICE:
        moved = t.detach().to(DEVICE) if t.is_leaf else t.to(DEVICE)
        if isinstance(t, torch.nn.Parameter):
            moved = torch.nn.Parameter(moved, t.requires_grad)
        t = moved.requires_grad_() if t.requires_grad else moved
    return mark_sharding(t, mesh, spec)


def to_dtensor(t: Tensor, device_mesh: DeviceMesh | None = None) -> DTensor:
    """A DTensor on the host that is sharded as `t`: its local tensor is a copy of what the device
    with this process's rank holds. It is detached, and requires grad if `t` does.

    torch.distributed has one rank per process, so that there are as many processes as devices
    (`SPMD_NUM_DEVICES` is torchrun's `--nproc-per-node`), or a group of one rank for a mesh of one
    device. A fake process group serves to look at one rank's part.

    Args:
        t: a tensor on `spmd` with a mark, or data whose sharding is known.
        device_mesh: a DeviceMesh with the same ranks and axes as the tensor's mesh; None makes one
            of "cpu".

    Errors:
        TypeError: an argument of another kind.
        ValueError: the tensor is not on `spmd`; there is no process group, or one with other ranks
            than the mesh has devices; the mesh is another one; a dimension is sharded over part of
            an axis.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> t = torch.ones(16, 8, device="spmd", requires_grad=True)
        >>> d = spmd.dtensor.to_dtensor(t)  # doctest: +SKIP
        >>> d.placements  # doctest: +SKIP
        (Shard(dim=0), Replicate())
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    _arguments.tensor("to_dtensor", t)
    if device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        raise TypeError(
            f"to_dtensor: device_mesh must be a DeviceMesh; got {_arguments.shown(device_mesh)}"
        )
    sharding = sharding_of(t)
    mesh, spec = sharding.mesh, sharding.spec
    rank = _checked_rank(mesh)
    placements = _placements("to_dtensor", mesh, spec)
    if device_mesh is None:
        device_mesh = to_device_mesh(mesh, "cpu")
    elif not _same_ranks(mesh, device_mesh):
        raise ValueError(
            f"to_dtensor: device_mesh is {device_mesh}, and the tensor's mesh is {mesh}; give none,"
            " or one with the same ranks in the same places"
        )
    shape, stride = t.shape, _contiguous(t.shape)
    local = _local(t, mesh, spec, device_mesh, placements, rank)
    made: Any = DTensor.from_local(
        local, device_mesh, placements, run_check=False, shape=shape, stride=stride
    )
    result: DTensor = made.requires_grad_(t.requires_grad)
    return result


def from_dtensor(d: DTensor, mesh: Mesh | None = None) -> Tensor:
    """A DTensor as a tensor of the device, with the mark that its placements say.

    Every process gathers the values on its host, as for every tensor that is moved to the device,
    and its devices take their parts. `Partial` is reduced and replicated. It is differentiable: a
    DTensor that is a leaf gets its gradient, as a tensor does of which `to("spmd")` is used.

    Args:
        d: a DTensor on any device. All processes call the function.
        mesh: the mesh; None makes one of the DTensor's ranks.

    Errors:
        TypeError: an argument of another kind.
        ValueError: a mesh of another shape; placements that no spec says; the process group is a
            fake one, which has no values of other ranks.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> t = spmd.dtensor.from_dtensor(d)  # doctest: +SKIP
        >>> spmd.sharding_of(t).spec  # doctest: +SKIP
        P('data', None)
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    if not isinstance(d, DTensor):
        raise TypeError(f"from_dtensor: d must be a DTensor; got {_arguments.shown(d)}")
    ranks = from_device_mesh(d.device_mesh)
    if mesh is None:
        mesh = ranks
    mesh = mesh_or_global("from_dtensor", mesh)
    if mesh.mesh_shape != ranks.mesh_shape:
        raise ValueError(
            f"from_dtensor: mesh {mesh} has another shape than the DTensor's, {ranks}; its axes "
            "stand for the DeviceMesh's in their order"
        )
    spec = _spec("from_dtensor", mesh, d.placements, tuple(d.shape), partial=True)
    if dist.get_backend() == "fake" and not all(p.is_replicate() for p in d.placements):
        raise ValueError(
            f"from_dtensor: the placements are {d.placements} and the process group is a fake one, "
            "which has no values of other ranks; run it in a job of several processes"
        )
    moved = d.full_tensor().to(DEVICE)
    return mark_sharding(moved if d.requires_grad else moved.detach(), mesh, spec)


def _axes_of_slice(mesh: Any) -> Sequence[str] | None:
    """The axes of a DeviceMesh; None if they are all that there are."""
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"distribute_tensor: mesh must be a Mesh or a DeviceMesh; got {_arguments.shown(mesh)}"
        )
    return None if mesh is _compat.root_mesh(mesh) else mesh.mesh_dim_names


def _on_all_axes(caller: str, mesh: Mesh, axes: Sequence[str], placements: Any) -> list[Any]:
    """The placements on a slice, as those on the mesh of which it is one."""
    from torch.distributed.tensor import Replicate

    given = _arguments.items(caller, "placements", placements, "one placement per axis")
    if len(given) != len(axes):
        raise ValueError(
            f"{caller}: {len(given)} placements were given for the {len(axes)} axes of a slice, "
            f"{tuple(axes)}; give one per axis"
        )
    of_axis = dict(zip(axes, given))
    return [of_axis.get(axis, Replicate()) for axis in mesh.axis_names]


def _same_ranks(mesh: Mesh, device_mesh: Any) -> bool:
    other = from_device_mesh(device_mesh)
    return (other.device_ids, other.mesh_shape) == (mesh.device_ids, mesh.mesh_shape)


def _checked_rank(mesh: Mesh) -> int:
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ValueError(
            "to_dtensor: there is no process group, and a DTensor is over its ranks; start one "
            "process per device with torchrun"
        )
    ranks, needed = dist.get_world_size(), max(mesh.device_ids) + 1
    from torch_spmd.processes.local_data import local_devices, process_count

    if ranks < needed or (process_count() > 1 and len(local_devices()) != 1):
        raise ValueError(
            f"to_dtensor: mesh {mesh} needs {needed} ranks, one per device, and the process group "
            f"has {ranks}; start as many processes as there are devices: torchrun "
            f"--nproc-per-node={needed}, SPMD_NUM_DEVICES={needed}"
        )
    return dist.get_rank()


def _local(
    t: Tensor, mesh: Mesh, spec: PartitionSpec, device_mesh: Any, placements: Any, rank: int
) -> Tensor:
    """What the rank holds. Where parts are uneven, PyTorch cuts as DTensor would."""
    ways = [math.prod(mesh.shape[axis] for axis in _axes(mesh, entry)) for entry in spec]
    parts = [n * _blocks(entry) for n, entry in zip(ways, spec)]
    if all(size % n == 0 for size, n in zip(t.shape, parts)):
        held = [s.data for s in local_shards(t) if s.device == rank]
        shape = [size // n for size, n in zip(t.shape, ways)]
        return held[0].reshape(shape) if held else t.new_empty(0, device="cpu")
    local = t.detach().cpu()
    at = device_mesh.get_coordinate()
    if at is None:
        return local.new_empty(0)
    for axis, placement in enumerate(placements):
        if not placement.is_replicate():
            local = _compat.pieces(placement, local, mesh.mesh_shape[axis])[at[axis]]
    return local.clone()


def _placements(caller: str, mesh: Mesh, spec: PartitionSpec) -> tuple[Placement, ...]:
    """One placement per axis. Errors: ValueError for a part of an axis, or an open dimension."""
    from torch.distributed.tensor import Replicate, Shard

    _StridedShard = _compat.strided_shard()

    result: list[Placement] = [Replicate() for _ in mesh.axis_names]
    for dim, entry in enumerate(spec):
        if getattr(entry, "is_unconstrained", False):
            raise ValueError(f"{caller}: spec {spec!r} leaves dimension {dim} open; mark it")
        axes = _axes(mesh, entry)
        positions = []
        for axis in axes:
            if axis not in mesh.axis_names:
                raise ValueError(
                    f"{caller}: spec {spec!r} names {axis!r}, a part of an axis, which no "
                    "placement says; reshard over whole axes before: spmd.reshard(t, mesh, spec)"
                )
            positions.append(mesh.get_axis_name_idx(axis))
        for order, position in enumerate(positions):
            before = [p for p in positions[:order] if p > position]
            factor = _blocks(entry) * math.prod(mesh.mesh_shape[p] for p in before)
            result[position] = (
                Shard(dim) if factor == 1 else _StridedShard(dim, split_factor=factor)
            )
    return tuple(result)


def _spec(
    caller: str, mesh: Mesh, placements: Any, shape: Sequence[int], partial: bool
) -> PartitionSpec:
    """The spec of the placements, `Partial` as `Replicate` if `partial`.

    Per dimension, axes are put in their order from the right: an axis stands behind the major ones
    that make its split factor, or behind blocks and those.

    Errors: ValueError.
    """
    from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

    _StridedShard = _compat.strided_shard()

    given = _arguments.items(caller, "placements", placements, "one placement per axis")
    if len(given) != len(mesh.axis_names):
        raise ValueError(
            f"{caller}: {len(given)} placements were given for the {len(mesh.axis_names)} axes of "
            f"mesh {mesh}; give one per axis"
        )
    orders: list[list[int]] = [[] for _ in shape]
    counts = [1] * len(shape)
    for position in reversed(range(len(given))):
        placement = given[position]
        if isinstance(placement, Replicate) or (partial and isinstance(placement, Partial)):
            continue
        if not isinstance(placement, (Shard, _StridedShard)):
            raise ValueError(
                f"{caller}: placements[{position}] is {_arguments.shown(placement)}; a mark is "
                "made of Shard, _StridedShard and Replicate, partial sums are the compiler's"
            )
        dim = placement.dim + len(shape) if placement.dim < 0 else placement.dim
        if not 0 <= dim < len(shape):
            raise ValueError(
                f"{caller}: placements[{position}] is {placement!r}, and the tensor has "
                f"{len(shape)} dimensions"
            )
        factor = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
        order = orders[dim]
        if not order:
            counts[dim] = factor
        behind = [
            i
            for i in range(len(order) + 1)
            if counts[dim] * math.prod(mesh.mesh_shape[p] for p in order[:i]) == factor
        ]
        if not behind:
            raise ValueError(
                f"{caller}: placements {tuple(given)} split dimension {dim} {factor} times before "
                f"axis {mesh.axis_names[position]!r}, which no order of axes or blocks of mesh "
                f"{mesh} does; redistribute the tensor before"
            )
        order.insert(behind[0], position)
    entries = []
    for order, count in zip(orders, counts):
        axes = tuple(mesh.axis_names[p] for p in order)
        entry: Any = axes[0] if len(axes) == 1 else axes or None
        entries.append(blocks(count, entry) if count > 1 else entry)
    return PartitionSpec(*entries)


def _axes(mesh: Mesh, entry: Any) -> tuple[str, ...]:
    inner = entry.axes if isinstance(entry, blocks) else entry
    found = () if inner is None else inner if isinstance(inner, tuple) else (inner,)
    return tuple(mesh.axis_names[a] if isinstance(a, int) else a for a in found)


def _blocks(entry: Any) -> int:
    return entry.n if isinstance(entry, blocks) else 1


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
