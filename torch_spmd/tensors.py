# SPDX-License-Identifier: Apache-2.0
"""Shardings of tensors."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from torch_spmd import _C, _arguments, _loading, _ops
from torch_spmd._compat import functorch as _functorch
from torch_spmd.mesh import Mesh, mesh_or_global
from torch_spmd.spec import (
    UNCONSTRAINED,
    NamedSharding,
    PartitionSpec,
    SpecLike,
    blocks,
    check_blocks,
    from_core,
    is_spec,
    names_in,
    to_spec,
    without_blocks,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")

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


def mark_sharding(t: T, mesh: Mesh | DeviceMesh | None = None, spec: SpecLike | Any = None) -> T:
    """Sets how a tensor is sharded over a mesh, in place. Returns `t`, which stays a plain Tensor.

    Data gets this sharding when it is next used; host data is uploaded shard by shard, never as a
    whole. A pending result, or a view of part of one, is constrained to it. A parameter keeps its
    mark through optimizer steps. Copies keep it, too: clone, deepcopy, contiguous, to (another
    dtype, the CPU and back), `.data =`, torch.save and torch.load, load_state_dict. A mark that you
    set on a copy replaces the one that it inherited. If the device cannot keep a mark (another
    number of dimensions, a mesh that this process cannot have), a warning says so. On the host a
    mark belongs to the memory that `x.cpu()` made: what PyTorch makes of that on the host
    (`x.cpu().clone()`, `x.cpu() * 1`, a file to which `x.cpu()` was saved) has no mark.

    In a traced graph (make_fx, aot_function, torch.compile) it is the op `spmd::mark_sharding`.

    Args:
        t: a tensor on `spmd` of any shape, or a tree (dict, list, tuple) of them. Either all are
            marked, or none if one cannot be.
        mesh: the mesh, or a DeviceMesh or a slice of one; None means the global one.
        spec: one entry per dimension; for a tree one spec for all, or a tree of specs.

    Errors:
        ValueError: the tensor is on another device; the spec's length is not the tensor's rank; an
            unknown or repeated axis; the tensor has a different mark already.
        IndexError: an axis index that the mesh does not have.
        TypeError: an entry that is neither None, an axis, a tuple of axes, nor UNCONSTRAINED.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 4), ("data", "model"))
        >>> w = spmd.mark_sharding(torch.ones(16, 8, device="spmd"), mesh, ("model", None))
        >>> [tuple(shard.data.shape) for shard in spmd.local_shards(w)][:2]
        [(4, 8), (4, 8)]
    """
    if torch.compiler.is_dynamo_compiling() and isinstance(t, Tensor) and isinstance(mesh, Mesh):
        torch.ops.spmd.mark_sharding(t, mesh._text, _ops.spec_text(spec))
        return t
    mesh = mesh_or_global("mark_sharding", mesh)
    if spec is None:
        raise TypeError("mark_sharding: no spec was given; write mark_sharding(t, mesh, spec)")
    mark_all(
        mesh,
        [
            (f"mark_sharding: t{where}" if where else "mark_sharding", tensor, to_spec(its_spec))
            for where, tensor, its_spec in _pairs(t, spec)
        ],
    )
    return t


def mark_all(mesh: Mesh, items: Sequence[tuple[str, Tensor, PartitionSpec]]) -> None:
    """Marks all of the tensors, each with its spec, or none.

    Errors: as mark_sharding. The message begins with the first field of the item.
    """
    traced, others = [], []
    for caller, given, given_spec in items:
        _check_not_manual(caller, given_spec)
        tensor, spec = _unwrapped(given, given_spec)
        _arguments.tensor(caller, tensor)
        if _ops.is_traced(tensor):
            text = _ops.spec_text(spec)
            _ops.check(caller, tensor, mesh._text, text)
            traced.append((tensor, text))
        else:
            others.append((tensor, mesh._core, spec, caller))
    if len(others) == 1 and not traced and others[0][3] == "mark_sharding":
        _C.mark_sharding(*others[0][:3])  # which checks before it marks
    else:
        _C.mark_shardings(others)
    for tensor, text in traced:
        torch.ops.spmd.mark_sharding(tensor, mesh._text, text)


def _check_not_manual(caller: str, spec: PartitionSpec) -> None:
    """Errors: ValueError for a spec that names an axis along which the caller is in a region."""
    for axis in _C.entered_axes():
        if axis.name in (name.partition(":")[0] for name in names_in(spec)):
            raise ValueError(
                f"{caller}: spec {spec!r} names axis {axis.name!r}, along which each device has "
                "its own shard inside of this manual region; name other axes, or send data by "
                "all_to_all, all_gather and the like"
            )


def _check_not_shard(caller: str, t: Tensor) -> None:
    """Errors: ValueError for a value inside of a region or of torch.func."""
    if isinstance(t, Tensor) and _functorch.is_functorch_wrapped_tensor(t):
        raise ValueError(
            f"{caller}: the tensor is a shard inside of a manual region, or a value inside of "
            "torch.func, which has no sharding of its own; ask outside"
        )


def _unwrapped(tensor: Tensor, spec: PartitionSpec) -> tuple[Tensor, PartitionSpec]:
    """Under vmap and grad the data is inside wrappers; the spec is about the unbatched
    dimensions."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            batch_dim = _functorch.maybe_get_bdim(tensor)
            spec = PartitionSpec(*spec[:batch_dim], UNCONSTRAINED, *spec[batch_dim:])
        tensor = _functorch.get_unwrapped(tensor)
    return tensor, spec


def reshard(t: Tensor, mesh: Mesh | None, spec: SpecLike) -> Tensor:
    """A new tensor with the values of `t` and the given sharding.

    It is differentiable; the gradient gets the same sharding. In a traced graph it is the op
    `spmd::reshard`.

    Errors: as `mark_sharding`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> rows = spmd.mark_sharding(torch.ones(8, 8, device="spmd"), mesh, ("x", None))
        >>> columns = spmd.reshard(rows, mesh, (None, "x"))
    """
    if not (torch.compiler.is_dynamo_compiling() and isinstance(mesh, Mesh)):
        mesh = mesh_or_global("reshard", mesh)
        _arguments.tensor("reshard", t)
        spec = to_spec(spec)
        _check_not_manual("reshard", spec)
    result: Tensor = torch.ops.spmd.reshard(t, mesh._text, _ops.spec_text(spec))
    return result


def clear_sharding(t: Tensor) -> None:
    """Removes the mark of a tensor, so that the compiler chooses its sharding.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, 8, device="spmd"), mesh, ("x", None))
        >>> spmd.clear_sharding(t)
        >>> t = spmd.mark_sharding(t, mesh, (None, "x"))
    """
    _check_not_shard("clear_sharding", t)
    _arguments.tensor("clear_sharding", t)
    _C.clear_sharding(t)


def sharding_of(t: Tensor) -> NamedSharding:
    """How a tensor is sharded. Runs nothing: for a pending value it is what would be chosen now.

    A question plans the ops since the last one, and of those before up to the last 128. What
    earlier ones made is taken as found then, so that asking in a loop takes no longer where more is
    pending.

    If no mesh is known, the tensor is on device 0 and the mesh consists of that device alone.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 4), ("data", "model"))
        >>> x = spmd.mark_sharding(torch.ones(8, 3, device="spmd"), mesh, ("data", None))
        >>> spmd.sharding_of(x)
        NamedSharding([data=2, model=4], P('data', None), committed)
    """
    _check_not_shard("sharding_of", t)
    _arguments.tensor("sharding_of", t)
    info = _C.sharding_of(t)
    if info is None:
        return NamedSharding(Mesh([0], [1], ["device"]), PartitionSpec(*[None] * t.dim()))
    mesh, spec, committed, provisional, unreduced = info
    return NamedSharding(
        Mesh._of(mesh),
        from_core(spec),
        is_committed=committed,
        is_provisional=provisional,
        unreduced=unreduced,
    )


def mark_of(t: Tensor) -> NamedSharding | None:
    """The user's mark, if there is one: `sharding_of` in a time that does not depend on what is
    pending.

    Errors: ValueError when the tensor is not on `spmd`.
    """
    _check_not_shard("sharding_of", t)
    mark = _C.mark_of(t)
    if mark is None:
        return None
    mesh, spec = mark
    return NamedSharding(Mesh._of(mesh), from_core(spec), is_committed=True)


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
    _check_not_shard("local_shards", t)
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
        >>> parts = [spmd.Shard(torch.full((2,), i), (slice(2 * i, 2 * i + 2),), i, 0)
        ...          for i in range(2)]
        >>> spmd.from_local_shards(parts, mesh, ("x",), (4,)).cpu()
        tensor([0, 0, 1, 1])
    """
    mesh = mesh_or_global("from_local_shards", mesh)
    spec = to_spec(spec)
    shape = _arguments.integers("from_local_shards", "shape", shape, least=0, most_items=64)
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
    if data.is_meta or _ops.is_traced(data):
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


def _check_keys(where: str, tree: Mapping[Any, Any], specs: Any) -> None:
    """Errors: ValueError if tensors and specs do not have the same names."""
    for key in tree:
        if not isinstance(specs, Mapping) or key not in specs:
            raise ValueError(
                f"{where}: the tree of specs has none for {_key(key)}; give one spec for "
                "all, or a tree of specs of the same form"
            )
    for key in specs:
        if key not in tree:
            raise ValueError(
                f"{where}: the tree of specs has one for {_key(key)}, which the tree of tensors "
                f"does not have; it has {_keys(tree)}"
            )


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) else _arguments.shown(key)


def _keys(tree: Mapping[Any, Any]) -> str:
    first = ", ".join(_key(key) for key in itertools.islice(tree, 8))
    return first if len(tree) <= 8 else f"{first} and {len(tree) - 8:,} more"


def _pairs(
    tree: Any, spec: Any, where: str = "", within: tuple[int, ...] = ()
) -> Iterator[tuple[str, Tensor, SpecLike]]:
    """The tensors of a tree, each with its position in the tree ("['a'][0]") and its spec.

    Errors: TypeError, ValueError.
    """
    caller = f"mark_sharding: t{where}" if where else "mark_sharding"
    if isinstance(tree, Tensor):
        yield where, tree, spec
        return
    if id(tree) in within or len(within) > 100:
        raise ValueError(f"{caller}: the tree of tensors contains itself, or is over 100 deep")
    within = (*within, id(tree))
    for_all = is_spec(spec)
    if isinstance(tree, Mapping):
        tree = _arguments.mapping("mark_sharding", f"t{where}", tree, "a tree of tensors")
        if not for_all:
            if isinstance(spec, Mapping):
                spec = _arguments.mapping("mark_sharding", "spec", spec, "a tree of specs")
            _check_keys(caller, tree, spec)
        for key, value in tree.items():
            yield from _pairs(
                value, spec if for_all else spec[key], f"{where}[{_key(key)}]", within
            )
    elif isinstance(tree, (list, tuple)):
        tree = _arguments.items("mark_sharding", f"t{where}", tree, "a tree of tensors")
        if not for_all and isinstance(spec, (list, tuple)):
            spec = _arguments.items("mark_sharding", "spec", spec, "a spec or a tree of specs")
        if not for_all and (not isinstance(spec, list) or len(spec) != len(tree)):
            raise ValueError(
                f"{caller}: there are {len(tree)} tensors and {_arguments.shown(spec)} for specs; "
                "give one spec for all, or a tree of specs of the same form"
            )
        for position, value in enumerate(tree):
            inner = spec if for_all else spec[position]
            yield from _pairs(value, inner, f"{where}[{position}]", within)
    else:
        _arguments.tensor("mark_sharding", tree, f"t{where}" if where else "")
