# SPDX-License-Identifier: Apache-2.0
"""Shardings of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd._compat import functorch as _functorch
from torch_spmd.sharding import ops
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import (
    UNCONSTRAINED,
    NamedSharding,
    PartitionSpec,
    SpecLike,
    from_core,
    is_spec,
    names_in,
    of_rank,
    to_spec,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


T = TypeVar("T")


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
        spec: one entry per dimension. A shorter spec leaves the last dimensions whole. For a tree,
            one spec for all, or a tree of specs.

    Errors:
        ValueError: the tensor is on another device; the spec is longer than the tensor's rank; an
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
        torch.ops.spmd.mark_sharding(t, mesh._text, ops.spec_text(of_rank(spec, t.dim())))
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
        _arguments.tensor(caller, given)
        if not torch.nn.parameter.is_lazy(given):
            given_spec = of_rank(given_spec, given.dim())
        tensor, spec = _unwrapped(given, given_spec)
        if ops.is_traced(tensor):
            text = ops.spec_text(spec)
            ops.check(caller, tensor, mesh._text, text)
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


def check_not_shard(caller: str, t: Tensor) -> None:
    """Errors: ValueError for a value inside of a region or of torch.func."""
    if isinstance(t, Tensor) and (
        _functorch.is_functorch_wrapped_tensor(t) or (_C.entered_axes() and _C.varies_along(t))
    ):
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
    whole = of_rank(spec, t.dim())
    result: Tensor = torch.ops.spmd.reshard(t, mesh._text, ops.spec_text(whole))
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
    check_not_shard("clear_sharding", t)
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
    check_not_shard("sharding_of", t)
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
    check_not_shard("sharding_of", t)
    mark = _C.mark_of(t)
    if mark is None:
        return None
    mesh, spec = mark
    return NamedSharding(Mesh._of(mesh), from_core(spec), is_committed=True)


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
