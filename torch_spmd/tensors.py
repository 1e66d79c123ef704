# SPDX-License-Identifier: Apache-2.0
"""Shardings of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch

from torch_spmd import _C, _ops
from torch_spmd.mesh import Mesh, mesh_or_global
from torch_spmd.spec import (
    UNCONSTRAINED,
    NamedSharding,
    PartitionSpec,
    SpecLike,
    blocks,
    from_core,
    is_spec,
    to_spec,
    without_blocks,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One device's part of a tensor.

    `data` is a CPU tensor of the part's true size (it may be empty), `index` says which part: one
    slice per dimension. Devices that hold the same part have replica ids 0, 1, … in device order.
    """

    data: Tensor
    index: tuple[slice, ...]
    device: int
    replica_id: int


def mark_sharding(t: T, mesh: Mesh | None = None, spec: SpecLike | Any = None) -> T:
    """Says how a tensor is cut over a mesh. In place; returns `t`, which stays a plain Tensor.

    Data is laid out so when it is next used (host data is uploaded cut, never whole). A pending
    result, or a view of part of one, is constrained to it. A parameter keeps it through optimizer
    steps. What is copied keeps it: clone, deepcopy, contiguous, to (another dtype, the CPU and
    back), `.data =`, torch.save and torch.load, load_state_dict; the mark of a copy gives way to
    one that you set on it. Where it cannot be kept a warning says so.

    Traced (make_fx, aot_function, torch.compile) it is the op `spmd::mark_sharding` in the graph.

    Args:
        t: a tensor on `spmd` of any shape, or a tree (dict, list, tuple) of them.
        mesh: the mesh; the global one where it is None.
        spec: one entry per dimension; for a tree one spec for all, or a tree of specs.

    Errors:
        ValueError: the tensor is elsewhere; the spec's length is not the tensor's rank; an unknown
            or repeated axis; another mark than the one the tensor has; part of stored data.
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
    for tensor, its_spec in _pairs(t, spec):
        _mark(tensor, mesh, to_spec(its_spec))
    return t


def _mark(tensor: Tensor, mesh: Mesh, spec: PartitionSpec) -> None:
    # Under vmap and grad the data is inside wrappers; the spec speaks of the unbatched dimensions.
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            batch_dim = _functorch.maybe_get_bdim(tensor)
            spec = PartitionSpec(*spec[:batch_dim], UNCONSTRAINED, *spec[batch_dim:])
        tensor = _functorch.get_unwrapped(tensor)
    check_on_device("mark_sharding", tensor)
    if _ops.is_traced(tensor):
        torch.ops.spmd.mark_sharding(tensor, mesh._text, _ops.spec_text(spec))
    else:
        _C.mark_sharding(tensor, mesh._core, spec)


def reshard(t: Tensor, mesh: Mesh | None, spec: SpecLike) -> Tensor:
    """A new tensor with the values of `t` and the given sharding.

    Differentiable: the gradient gets the same sharding. Traced it is the op `spmd::reshard`.

    Errors: as `mark_sharding`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> rows = spmd.mark_sharding(torch.ones(8, 8, device="spmd"), mesh, ("x", None))
        >>> columns = spmd.reshard(rows, mesh, (None, "x"))
    """
    if not (torch.compiler.is_dynamo_compiling() and isinstance(mesh, Mesh)):
        mesh = mesh_or_global("reshard", mesh)
        check_on_device("reshard", t)
        spec = to_spec(spec)
    result: Tensor = torch.ops.spmd.reshard(t, mesh._text, _ops.spec_text(spec))
    return result


def clear_sharding(t: Tensor) -> None:
    """Drops the mark of a tensor: the compiler chooses again.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> t = spmd.mark_sharding(torch.ones(8, 8, device="spmd"), mesh, ("x", None))
        >>> spmd.clear_sharding(t)
        >>> t = spmd.mark_sharding(t, mesh, (None, "x"))
    """
    check_on_device("clear_sharding", t)
    _C.clear_sharding(t)


def sharding_of(t: Tensor) -> NamedSharding:
    """How a tensor is cut. Runs nothing: for a pending value it is what would be chosen now.

    Where no mesh is known, the tensor is whole on device 0 and the mesh has that device alone.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 4), ("data", "model"))
        >>> x = spmd.mark_sharding(torch.ones(8, 3, device="spmd"), mesh, ("data", None))
        >>> spmd.sharding_of(x)
        NamedSharding([data=2, model=4], P('data', None), committed)
    """
    check_on_device("sharding_of", t)
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


def local_shards(t: Tensor) -> list[Shard]:
    """What each device of the mesh holds, in the mesh's order. Runs what is pending. Copies.

    Of a tensor that is marked with blocks(n, axes) the parts are those of its view in which that
    dimension of size n * k is two, n and k: no slice of the tensor is what a device holds.

    Errors: ValueError when the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> x = spmd.mark_sharding(torch.arange(10, device="spmd"), mesh, ("x",))
        >>> [shard.data.tolist() for shard in spmd.local_shards(x)]
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    """
    check_on_device("local_shards", t)
    return [
        Shard(data, tuple(slice(begin, end) for begin, end in box), device, replica)
        for data, box, device, replica in _C.local_shards(blocks_apart(t))
    ]


def from_local_shards(
    shards: Sequence[Shard], mesh: Mesh | None, spec: SpecLike, shape: Sequence[int]
) -> Tensor:
    """A tensor of `shape` from the parts that devices hold; replicas may be left out.

    Errors: ValueError naming the first element that is missing, or a part of the wrong size.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> parts = [spmd.Shard(torch.full((2,), i), (slice(2 * i, 2 * i + 2),), i, 0)
        ...          for i in range(2)]
        >>> spmd.from_local_shards(parts, mesh, ("x",), (4,)).cpu()
        tensor([0, 0, 1, 1])
    """
    mesh = mesh_or_global("from_local_shards", mesh)
    shape = [int(size) for size in shape]
    plain, sizes = _plain_form("from_local_shards", to_spec(spec), shape)
    result: Tensor = _C.from_local_shards(
        _core_shards("from_local_shards", shards, sizes), mesh._core, plain, sizes
    )
    return result if sizes == shape else result.view(shape)


def load_local_shards_(t: Tensor, shards: Sequence[Shard]) -> Tensor:
    """Overwrites `t` with the parts given; returns it, cut as before. The parts may be cut in
    another way, but must cover it.

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
    check_on_device("load_local_shards_", t)
    apart = blocks_apart(t)
    _C.load_local_shards(apart, _core_shards("load_local_shards_", shards, list(apart.shape)))
    return t


def _plain_form(
    caller: str, spec: PartitionSpec, shape: list[int]
) -> tuple[PartitionSpec, list[int]]:
    """With blocks apart. Errors: ValueError where a dimension is not so many blocks."""
    for position, (dim, size) in enumerate(zip(spec, shape)):
        if isinstance(dim, blocks) and size % dim.n != 0:
            raise ValueError(
                f"{caller}: spec {spec!r} says that dimension {position} is {dim.n} blocks of one "
                f"size, but its size is {size}, which {dim.n} does not divide"
            )
    if len(spec) != len(shape):
        return spec, shape
    plain, sizes = without_blocks(spec, shape)
    return plain, list(sizes)


def blocks_apart(t: Tensor) -> Tensor:
    """The tensor with dimensions of blocks as two each."""
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
    check_on_device("full_tensor", t)
    return t.detach().cpu()


def check_on_device(caller: str, t: Any) -> None:
    """Errors: TypeError for what is no tensor, ValueError for one that is not on `spmd`."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{caller}: expected a tensor on 'spmd', got {t!r} ({type(t).__name__})")
    if t.device.type != "spmd":
        raise ValueError(
            f"{caller}: the tensor of shape {tuple(t.shape)} is on {str(t.device)!r}, not on "
            "'spmd'; move it first: t = t.to('spmd')"
        )


def _core_shards(
    caller: str, shards: Sequence[Shard], shape: Sequence[int]
) -> list[tuple[Any, ...]]:
    result = []
    for shard in shards:
        if len(shard.index) != len(shape):
            raise ValueError(
                f"{caller}: the shard of device {shard.device} has {len(shard.index)} slices, but "
                f"the tensor has {len(shape)} dimensions; give one slice per dimension"
            )
        box = tuple(part.indices(size)[:2] for part, size in zip(shard.index, shape))
        result.append((shard.data.detach().cpu(), box, int(shard.device), int(shard.replica_id)))
    return result


def _check_keys(tree: Mapping[Any, Any], specs: Any) -> None:
    """Errors: ValueError where not the same names have tensors and specs."""
    for key in tree:
        if not isinstance(specs, Mapping) or key not in specs:
            raise ValueError(
                f"mark_sharding: the tree of specs has none for {key!r}; give one spec for "
                "all, or a tree of specs of the same form"
            )
    for key in specs:
        if key not in tree:
            raise ValueError(
                f"mark_sharding: the tree of specs has one for {key!r}, which the tree of tensors "
                f"does not have; it has {', '.join(map(repr, tree))}"
            )


def _pairs(tree: Any, spec: Any) -> Iterator[tuple[Tensor, SpecLike]]:
    """The tensors of a tree, each with its spec."""
    if isinstance(tree, Tensor):
        yield tree, spec
        return
    for_all = is_spec(spec)
    if isinstance(tree, Mapping):
        if not for_all:
            _check_keys(tree, spec)
        for key, value in tree.items():
            yield from _pairs(value, spec if for_all else spec[key])
    elif isinstance(tree, (list, tuple)):
        if not for_all and (not isinstance(spec, (list, tuple)) or len(spec) != len(tree)):
            raise ValueError(
                f"mark_sharding: there are {len(tree)} tensors and {spec!r} for specs; give one "
                "spec for all, or a tree of specs of the same form"
            )
        for position, value in enumerate(tree):
            yield from _pairs(value, spec if for_all else spec[position])
    else:
        check_on_device("mark_sharding", tree)
