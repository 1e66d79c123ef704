# SPDX-License-Identifier: Apache-2.0
"""The parts of a tensor that devices hold: taken from it, and put together."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_spmd import _C, _arguments, _loading
from torch_spmd.sharding import ops
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import (
    SpecLike,
    blocks,
    check_blocks,
    of_rank,
    to_spec,
    without_blocks,
)

if TYPE_CHECKING:
    pass
from torch_spmd.sharding.marks import (
    check_not_shard,
    sharding_of,
)

_loading.refuse_reload(__name__, globals(), "Shard")


@dataclass(frozen=True)
class Shard:
    """One device's part of a tensor.

    `data` is a CPU tensor of the part's true size, which may be empty. `index` says which part it
    is: one slice per dimension. Devices that hold the same part have replica ids 0, 1, … in device
    order.
    """

    data: Tensor
    index: tuple[slice, ...]
    device: int
    replica_id: int


def local_shards(t: Tensor, devices: Sequence[int] | None = None) -> list[Shard]:
    """Copies of what each device of the mesh holds, in the mesh's order. Runs what is pending. In a
    job of several processes: of its own devices.

    If the tensor is marked with blocks(n, axes), the parts are those of the view in which that
    dimension of size n * k is two dimensions, n and k, since a device's part is not a slice of the
    tensor itself.

    Args:
        t: a tensor on `spmd`.
        devices: the devices whose parts are returned; None means all of the mesh that this process
            runs.

    Errors: TypeError for an argument of another kind; ValueError if the tensor is not on `spmd`, a
    device is not in the mesh, or the copies need more memory than the machine has.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> x = spmd.mark_sharding(torch.arange(10, device="spmd"), mesh, ("x",))
        >>> [shard.data.tolist() for shard in spmd.local_shards(x)]
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    """
    check_not_shard("local_shards", t)
    _arguments.tensor("local_shards", t)
    t = blocks_apart(t)
    if devices is not None:
        devices = _arguments.integers("local_shards", "devices", devices, 0, any_order=True)
    if _C.process()[1] == 1 and (devices is not None or t.nbytes > 1 << 26):
        return _shards_of(t, devices)
    shards = [
        Shard(data, tuple(slice(begin, end) for begin, end in box), device, replica)
        for data, box, device, replica in _C.local_shards(t)
    ]
    if devices is None:
        return shards
    by_device = {shard.device: shard for shard in shards}
    for device in devices:
        if device not in by_device:
            raise ValueError(
                f"local_shards: devices names {device}, which is not among the devices of the mesh "
                f"that this process runs: {sorted(by_device)}"
            )
    return [by_device[device] for device in devices]


def _shards_of(t: Tensor, devices: Sequence[int] | None) -> list[Shard]:
    """The shards of these devices, in this order. Checks that memory suffices before it copies."""
    whole = t.detach().cpu()
    holders: dict[Any, int] = {}
    held: dict[int, tuple[Any, int]] = {}
    for device, box in _C.shard_boxes(t):
        held[device] = (box, holders.setdefault(box, 0))
        holders[box] += 1
    wanted = list(held) if devices is None else devices
    for device in wanted:
        if device not in held:
            raise ValueError(
                f"local_shards: devices names {device}, which is not in the mesh: it has "
                f"{len(held):,}, from {min(held)} to {max(held)}"
            )
    boxes = (held[device][0] for device in wanted)
    copied = sum(math.prod(max(0, end - begin) for begin, end in box) for box in boxes)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    copied *= t.itemsize
    if copied > there:
        raise ValueError(
            f"local_shards: the parts of {len(wanted):,} devices take {copied:,} bytes as "
            f"copies, and this machine has {there:,}; name some of them: devices=[{wanted[0]}]"
        )
    shards = []
    for device in wanted:
        box, replica = held[device]
        index = tuple(slice(begin, max(begin, end)) for begin, end in box)
        data = whole[index].clone(memory_format=torch.contiguous_format)
        shards.append(Shard(data, tuple(slice(begin, end) for begin, end in box), device, replica))
    return shards


def from_local_shards(
    shards: Sequence[Shard], mesh: Mesh | None, spec: SpecLike, shape: Sequence[int]
) -> Tensor:
    """A tensor of `shape` from the parts that devices hold; replicas may be left out. In a job of
    several processes each gives the parts of its own devices.

    Errors:
        TypeError: an argument of another kind, or with items of another kind.
        ValueError: an element is missing (the first one is named), a part has the wrong size, or
            parts have different dtypes.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> parts = [
        ...     spmd.Shard(torch.full((2,), i), (slice(2 * i, 2 * i + 2),), i, 0)
        ...     for i in range(2)
        ... ]
        >>> spmd.from_local_shards(parts, mesh, ("x",), (4,)).cpu()
        tensor([0, 0, 1, 1])
    """
    mesh = mesh_or_global("from_local_shards", mesh)
    spec = to_spec(spec)
    shape = _arguments.integers("from_local_shards", "shape", shape, least=0, most_items=64)
    spec = of_rank(spec, len(shape))
    check_blocks("from_local_shards", spec, shape)
    sizes = shape
    if len(spec) == len(shape):
        spec, sizes = without_blocks(spec, shape)
    parts = _core_shards("from_local_shards", shards, sizes)
    if _C.process()[1] == 1:
        _check_shape(sizes, parts)
    result: Tensor = _C.from_local_shards(parts, mesh._core, spec, sizes)
    return result if len(sizes) == len(shape) else result.view(shape)


def load_local_shards_(t: Tensor, shards: Sequence[Shard]) -> Tensor:
    """Overwrites `t` with the given parts and returns it; its sharding stays the same. The parts
    may come from another sharding, but must cover the tensor. In a job of several processes each
    gives parts that cover what its own devices hold.

    Errors: as `from_local_shards`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> t = spmd.mark_sharding(torch.arange(4, device="spmd"), mesh, ("x",))
        >>> saved = spmd.local_shards(t)
        >>> t = t.zero_()
        >>> spmd.load_local_shards_(t, saved).tolist()
        [0, 1, 2, 3]
    """
    _arguments.tensor("load_local_shards_", t)
    apart = blocks_apart(t)
    _C.load_local_shards(apart, _core_shards("load_local_shards_", shards, list(apart.shape)))
    return t


def blocks_apart(t: Tensor) -> Tensor:
    """The view of the tensor in which each dimension of blocks is two dimensions."""
    sharding = sharding_of(t)
    if not any(isinstance(dim, blocks) for dim in sharding.spec):
        return t
    apart = t.detach()
    for d in reversed(range(t.dim())):
        dim = sharding.spec[d]
        if isinstance(dim, blocks) and dim.n > 1:
            apart = apart.unflatten(d, (dim.n, -1 if t.numel() else t.shape[d] // dim.n))
    return apart


def full_tensor(t: Tensor) -> Tensor:
    """A copy of the whole tensor on the host, detached. Runs what is pending.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> t = spmd.mark_sharding(torch.arange(4, device="spmd"), mesh, ("x",))
        >>> spmd.full_tensor(t + 1)
        tensor([1, 2, 3, 4])
    """
    _arguments.tensor("full_tensor", t)
    return t.detach().cpu()


def _core_shards(
    caller: str, shards: Sequence[Shard], shape: Sequence[int]
) -> list[tuple[Any, ...]]:
    found = _arguments.items(caller, "shards", shards, "a sequence of spmd.Shard")
    return [
        _core_shard(caller, f"shards[{position}]", shard, shape)
        for position, shard in enumerate(found)
    ]


def _core_shard(caller: str, name: str, shard: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    if not isinstance(shard, Shard):
        raise TypeError(f"{caller}: {name} must be an spmd.Shard; got {_arguments.shown(shard)}")
    device = _arguments.integer(caller, f"{name}.device", shard.device, 0)
    replica = _arguments.integer(caller, f"{name}.replica_id", shard.replica_id, 0)
    index = _arguments.items(caller, f"{name}.index", shard.index, "one slice per dimension")
    if len(index) != len(shape):
        raise ValueError(
            f"{caller}: the shard of device {device} has {len(index)} slices, but "
            f"the tensor has {len(shape)} dimensions; give one slice per dimension"
        )
    box = []
    for d, (part, size) in enumerate(zip(index, shape)):
        what = f"{caller}: {name}.index[{d}]"
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise TypeError(f"{what} must be a slice without a step; got {_arguments.shown(part)}")
        try:
            begin, end, _ = part.indices(size)
        except Exception as error:
            raise TypeError(
                f"{what} must be a slice of integers; got {_arguments.shown(part)}"
            ) from error
        box.append((begin, end))
    return host_data(caller, f"{name}.data", shard.data), tuple(box), device, replica


def host_data(caller: str, name: str, data: Any) -> Tensor:
    """A dense tensor, detached, on the host. Errors: TypeError, ValueError for other things."""
    if not isinstance(data, Tensor) or data.layout != torch.strided or data.is_nested:
        raise TypeError(f"{caller}: {name} must be a dense tensor; got {_arguments.shown(data)}")
    if data.is_meta or ops.is_traced(data):
        raise ValueError(f"{caller}: {name} is on 'meta', fake or traced: it has no values")
    return data.detach().cpu()


def _check_shape(shape: Sequence[int], shards: Sequence[tuple[Any, ...]]) -> None:
    """Checks that the shards can fill the tensor, before memory is allocated for it."""
    kinds = list(dict.fromkeys(data.dtype for data, *_ in shards))
    if len(kinds) > 1:
        raise ValueError(
            f"from_local_shards: shards[0].data is of {kinds[0]}, another of {kinds[1]}; all parts "
            "of a tensor have one dtype"
        )
    there, wanted = sum(data.numel() for data, *_ in shards), math.prod(shape)
    if shards and wanted > max(there, 1 << 20):
        raise ValueError(
            f"from_local_shards: shape {_arguments.shown(tuple(shape))} has "
            f"{_arguments.shown(wanted)} elements, but all shards together have {there:,}"
        )
