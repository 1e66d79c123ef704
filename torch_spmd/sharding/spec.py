# SPDX-License-Identifier: Apache-2.0
"""Partition specs: per dimension of a tensor, the mesh axes that shard it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Union

import torch

from torch_spmd import _arguments, _loading
from torch_spmd.sharding.global_mesh import read_mesh
from torch_spmd.sharding.mesh import Mesh

_loading.refuse_reload(__name__, globals(), "PartitionSpec")

MOST_DIMS = 64  # of a tensor, and axes that shard one dimension


class _Unconstrained:
    """The one value `UNCONSTRAINED`."""

    is_unconstrained = True

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()
"""An entry that leaves its dimension open: the compiler chooses."""


class blocks:
    """An entry of a spec: the dimension is `n` blocks of equal size, one after another, each of
    which is sharded over `axes`.

    This is for projections that are one weight: queries, keys and values of attention, gate and up
    of an MLP. A block that is split off (`chunk`, `split`) is then sharded as a separate weight
    would be, and nothing is sent. If the axes do not divide the size, each block is sharded
    unevenly by itself. `mark_sharding(w.view(h, 3, h), mesh, P(None, None, "model"))` has the same
    effect.

    A device's part of such a tensor is not a slice of it. `local_shards` therefore gives the parts
    of the view in which the dimension of size n * k is two dimensions, n and k.

    Errors: TypeError if `n` is not an integer, or `axes` is not an axis or a tuple of axes;
    ValueError if `n` is less than 1. `mark_sharding` raises a ValueError if the dimension is not
    `n` blocks of equal size.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("model",))
        >>> w = torch.ones(64, 3 * 64, device="spmd")
        >>> w = spmd.mark_sharding(w, mesh, spmd.P(None, spmd.blocks(3, "model")))
        >>> spmd.sharding_of(w).spec
        P(None, blocks(3, 'model'))
        >>> spmd.local_shards(w)[0].data.shape
        torch.Size([64, 3, 16])
    """

    __slots__ = ("axes", "n")

    is_blocks = True
    n: int
    axes: Any

    def __init__(self, n: int, axes: Any) -> None:
        if torch.compiler.is_dynamo_compiling():  # it follows plain steps only
            self.n, self.axes = n, tuple(axes) if isinstance(axes, list) else axes
            return
        if isinstance(n, (tuple, list)):
            raise TypeError(
                f"blocks: n is {_arguments.plain(n)}; blocks of unequal sizes are not supported, "
                "give the number of blocks of equal size"
            )
        self.n = _arguments.integer("blocks", "n", n, least=1)
        several = isinstance(axes, (tuple, list))
        each = [axes]
        if several:
            each = _arguments.items("blocks", "axes", axes, "a tuple of axes", MOST_DIMS)
        if not each or not all(map(_is_axis, each)):
            raise TypeError(
                f"blocks: axes is {_arguments.shown(axes)}; give the axis that shards each block, "
                "by name or index, or a tuple of axes"
            )
        parts = tuple(_axis(axis, "axes", "blocks") for axis in each)
        self.axes = parts if several else parts[0]

    def __repr__(self) -> str:
        return f"blocks({self.n}, {self.axes!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, blocks):
            return NotImplemented
        return (self.n, self.axes) == (other.n, other.axes)

    def __hash__(self) -> int:
        return hash((blocks, self.n, self.axes))

    def __reduce__(self) -> tuple[Any, ...]:
        return blocks, (self.n, self.axes)


SpecLike = Union["PartitionSpec", Sequence[Any]]


class PartitionSpec(tuple[Any, ...]):
    """One entry per dimension: None (not sharded), an axis name or index, a tuple of those (major
    first), blocks(n, axes) (each of n blocks is sharded), or UNCONSTRAINED (the compiler chooses).
    A spec that is shorter than a tensor's rank leaves the last dimensions whole: P() replicates.
    Also called `P`. Plain tuples are accepted everywhere as well.

    An entry may name a part of an axis: "model:0" is the major (first) of its prime factors, in
    ascending order. So an axis of size 8 has "model:0", "model:1" and "model:2", each of size 2.
    `sharding_of` uses these names if a view has split a dimension that an axis shards.
    "model:(2)4" names a part that is not a prime factor: the part of size 4 below the major 2.

    Errors: TypeError for any other entry.

    Example:
        >>> from torch_spmd import P
        >>> P("data", None, ("x", "y"))
        P('data', None, ('x', 'y'))
    """

    UNCONSTRAINED = UNCONSTRAINED

    def __new__(cls, *dims: Any) -> PartitionSpec:
        if torch.compiler.is_dynamo_compiling():  # it follows plain steps only
            return tuple.__new__(cls, [tuple(d) if isinstance(d, list) else d for d in dims])
        if len(dims) > MOST_DIMS:
            raise ValueError(
                f"PartitionSpec: {len(dims):,} entries were given; a tensor has at most "
                f"{MOST_DIMS} dimensions"
            )
        return tuple.__new__(cls, [_plain(dim, position) for position, dim in enumerate(dims)])

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


P = PartitionSpec


class NamedSharding:
    """A mesh and a spec, as a value.

    The result of `sharding_of` says more: `is_committed` (it is the user's mark), `is_provisional`
    (the tensor is pending: this would be chosen if it were computed now), `unreduced` (names of the
    axes along which each device holds a partial sum). Comparisons ignore these.

    Errors:
        TypeError: an argument of another kind.
        ValueError: an axis that the mesh does not have, or one twice.

    Example:
        >>> import torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 2), ("x", "y"))
        >>> spmd.NamedSharding(mesh, ("x", None)).hlo_string()
        '{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}'
    """

    __slots__ = ("is_committed", "is_provisional", "mesh", "spec", "unreduced")

    def __init__(
        self,
        mesh: Mesh,
        spec: SpecLike,
        *,
        is_committed: bool = False,
        is_provisional: bool = False,
        unreduced: Sequence[str] = (),
    ) -> None:
        mesh = read_mesh(mesh)
        if not isinstance(mesh, Mesh):
            raise TypeError(f"NamedSharding: mesh must be a Mesh; got {_arguments.shown(mesh)}")
        self.mesh = mesh
        self.spec = to_spec(spec)
        _check_axes(mesh, self.spec)
        flag = _arguments.boolean
        self.is_committed = flag("NamedSharding", "is_committed", is_committed)
        self.is_provisional = flag("NamedSharding", "is_provisional", is_provisional)
        self.unreduced = tuple(_arguments.texts("NamedSharding", "unreduced", unreduced))
        _check_axes(mesh, self.unreduced)

    def hlo_string(self) -> str:
        """XLA's text for this sharding. XLA has no blocks: for a dimension of blocks it is the text
        of the view in which they are a dimension. Errors: ValueError for an unknown axis."""
        plain, _ = without_blocks(self.spec, [0] * len(self.spec))
        return str(self.mesh._core.hlo_string(plain))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedSharding):
            return NotImplemented
        return self.mesh == other.mesh and self._canonical() == other._canonical()

    def __hash__(self) -> int:
        return hash((self.mesh, self._canonical()))

    def _canonical(self) -> tuple[Any, ...]:
        """The spec with all parts of an axis, in order, replaced by the axis."""
        return self.mesh._core.canonical_spec(self.spec)

    def _parts(self) -> str:
        """The sizes of the parts of axes that the spec names: "a:0=2, a:1=2"."""
        names = [
            axis
            for dim in (*self.spec, self.unreduced)
            for axis in _axes_of(dim)
            if isinstance(axis, str) and ":" in axis
        ]
        return ", ".join(f"{name}={self.mesh._core.part_of_axis(name)[2]}" for name in names)

    def __repr__(self) -> str:
        parts = self._parts()
        notes = [
            note
            for note, holds in (
                (parts, bool(parts)),
                ("committed", self.is_committed),
                ("provisional", self.is_provisional),
                (f"unreduced along {', '.join(self.unreduced)}", bool(self.unreduced)),
            )
            if holds
        ]
        tail = f", {'; '.join(notes)}" if notes else ""
        return f"NamedSharding({self.mesh._core.axes_to_string()}, {self.spec!r}{tail})"


def _check_axes(mesh: Mesh, spec: Sequence[Any]) -> None:
    """Errors: ValueError for a name that is not in the mesh (with the likely one) or repeated."""
    seen = set()
    for dim in spec:
        for axis in _axes_of(dim):
            if not isinstance(axis, str):
                continue
            if ":" in axis:
                mesh._core.part_of_axis(axis)
            else:
                mesh.get_axis_name_idx(axis)
            if axis in seen:
                raise ValueError(f"NamedSharding: axis {axis!r} occurs twice in {spec!r}")
            seen.add(axis)


def _axes_of(dim: Any) -> tuple[Any, ...]:
    if isinstance(dim, blocks):
        dim = dim.axes
    return dim if isinstance(dim, tuple) else (dim,)


def check_blocks(caller: str, spec: PartitionSpec, shape: Sequence[int]) -> None:
    """Errors: ValueError if a dimension is not that many blocks of equal size."""
    for position, (dim, size) in enumerate(zip(spec, shape)):
        if isinstance(dim, blocks) and size % dim.n != 0:
            raise ValueError(
                f"{caller}: spec {spec!r} says that dimension {position} is {dim.n} blocks of one "
                f"size, but its size is {size}, which {dim.n} does not divide"
            )


def without_blocks(spec: PartitionSpec, shape: Sequence[int]) -> tuple[PartitionSpec, list[int]]:
    """Spec and shape with each dimension of blocks as two dimensions. Requires: they fit."""
    dims: list[Any] = []
    sizes: list[int] = []
    for dim, size in zip(spec, shape):
        if isinstance(dim, blocks) and dim.n > 1:
            dims += [None, dim.axes]
            sizes += [dim.n, size // dim.n]
        else:
            dims.append(dim.axes if isinstance(dim, blocks) else dim)
            sizes.append(size)
    return PartitionSpec(*dims), sizes


def to_spec(spec: SpecLike) -> PartitionSpec:
    """Any accepted form of a spec as a PartitionSpec. Errors: TypeError."""
    if isinstance(spec, PartitionSpec):
        return spec
    wrong = isinstance(spec, (str, bytes, bytearray, Mapping, Set, type, torch.Tensor))
    if wrong or not hasattr(type(spec), "__getitem__"):
        raise TypeError(
            "PartitionSpec: expected a tuple with one entry per dimension, got "
            f"{_arguments.shown(spec)}; {_ENTRY_KINDS}"
        )
    return PartitionSpec(*_arguments.items("PartitionSpec", "spec", spec, _ENTRY_KINDS))


def of_rank(spec: SpecLike, rank: int) -> PartitionSpec:
    """The spec with an entry for each dimension: a spec that is shorter than a tensor's rank leaves
    the last dimensions whole."""
    if isinstance(spec, PartitionSpec) and len(spec) >= rank:
        return spec
    return PartitionSpec(*spec, *[None] * (rank - len(spec)))


def from_core(spec: Sequence[Any]) -> PartitionSpec:
    """The PartitionSpec of a spec that C++ returned."""
    return PartitionSpec(*(UNCONSTRAINED if dim == "UNCONSTRAINED" else dim for dim in spec))


def is_spec(value: Any) -> bool:
    """Whether `value` is one spec, not a tree of specs. A plain tuple that could be either counts
    as one spec, so write P(…) at the leaves of trees."""
    if isinstance(value, PartitionSpec):
        return True
    if not isinstance(value, (tuple, list)):
        return False
    entries = _arguments.items("mark_sharding", "spec", value, "a spec or a tree of specs")
    if any(isinstance(entry, PartitionSpec) for entry in entries):
        return False
    try:
        to_spec(value)
    except (TypeError, ValueError):
        return False
    return True


_ENTRY_KINDS = (
    "an entry is None (not sharded), an axis name or index, a tuple of those (major first), "
    "blocks(n, axes), or UNCONSTRAINED"
)


def _plain(dim: Any, position: int) -> Any:
    """The entry with lists as tuples and numpy integers as ints."""
    if dim is None or getattr(type(dim), "is_unconstrained", False) is True:
        return dim
    if isinstance(dim, blocks):
        return dim
    if _is_axis(dim):
        return _axis(dim, f"entry {position}")
    wrong = isinstance(dim, (bytes, bytearray, Mapping, Set, type, torch.Tensor))
    if wrong or not hasattr(type(dim), "__getitem__"):
        raise TypeError(
            f"PartitionSpec: entry {position} is {_arguments.shown(dim)}; {_ENTRY_KINDS}"
        )
    axes = _arguments.items("PartitionSpec", f"entry {position}", dim, "a tuple of axes", MOST_DIMS)
    for axis in axes:
        if not _is_axis(axis):
            raise TypeError(
                f"PartitionSpec: entry {position} contains {_arguments.shown(axis)}; {_ENTRY_KINDS}"
            )
    return tuple(_axis(axis, f"entry {position}") for axis in axes)


def _is_axis(value: Any) -> bool:
    if isinstance(value, (bool, type, torch.Tensor)):
        return False
    return isinstance(value, str) or hasattr(type(value), "__index__")


def _axis(value: Any, name: str, caller: str = "PartitionSpec") -> Any:
    if isinstance(value, str):
        return _arguments.text(caller, name, value)
    return _arguments.integer(caller, name, value)


def names_in(spec: PartitionSpec) -> list[str]:
    """The names of the axes, or parts of axes, in a spec, in order."""
    names: list[str] = []
    for entry in spec:
        entry = entry.axes if isinstance(entry, blocks) else entry
        names += [
            n for n in (entry if isinstance(entry, tuple) else (entry,)) if isinstance(n, str)
        ]
    return names
