# SPDX-License-Identifier: Apache-2.0
"""Manual regions on local shapes: inside, a tensor is a device's own shard, an ordinary tensor.

Two ops cross the border of a region, `spmd::to_local` and `spmd::to_global`; each is the other's
transpose (csrc/ir/border.h). A collective is an op on one tensor of all devices' values between
them. Which values vary, the device knows (csrc/trace/api/manual_region.h).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_spmd import _C, _compat
from torch_spmd.regions import collectives, manual
from torch_spmd.sharding import ops
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import PartitionSpec


@dataclass
class LocalAxis(manual.ManualAxis):
    """An axis of a region whose function sees tensors of local shapes."""

    is_local: ClassVar[bool] = True

    @functools.cached_property
    def index(self) -> Tensor:
        positions = torch.arange(self.size, device="spmd")
        return _apart(positions, 0, self).squeeze(0)


def to_local(t: Tensor, spec: Sequence[Any], mesh: Mesh, to_all: Sequence[str] = ()) -> Tensor:
    """Each device's part of the tensor; along the axes `to_all` each has all of it."""
    sizes = mesh.shape()
    size = [n // _count(entry, sizes) for n, entry in zip(t.shape, spec)]
    result: Tensor = torch.ops.spmd.to_local(t, size, _border(spec, to_all), mesh._text)
    return result


def to_global(t: Tensor, spec: Sequence[Any], mesh: Mesh, added: Sequence[str] = ()) -> Tensor:
    """The tensor of which the devices have parts; those along the axes `added` are added up."""
    sizes = mesh.shape()
    size = [n * _count(entry, sizes) for n, entry in zip(t.shape, spec)]
    result: Tensor = torch.ops.spmd.to_global(t, size, _border(spec, added), mesh._text)
    return result


def _count(entry: Any, sizes: dict[str, int]) -> int:
    return math.prod(sizes[axis] for axis in manual._axes_of(entry))


def _border(spec: Sequence[Any], rest: Sequence[str] = ()) -> str:
    text = ops.spec_text(spec)
    return f"{text} all{ops.spec_text(rest)}" if rest else text


def vary(t: Tensor, axis: manual.ManualAxis) -> Tensor:
    """The tensor as one that varies along the axis."""
    return t if manual.varies(t, axis) else to_local(t, (None,) * t.dim(), axis.mesh, (axis.name,))


def apply(t: Tensor, axis: manual.ManualAxis, op: collectives._Collective) -> Tensor:
    t = vary(t, axis)
    match op:
        case collectives._Reduce("sum") if t.dtype != torch.bool:
            return to_global(t, (None,) * t.dim(), axis.mesh, (axis.name,))
        case collectives._Gather(dim, tiled):
            return _together(t if tiled else t.unsqueeze(dim), dim, axis)
        case collectives._Scatter(dim, tiled):
            own = _apart(to_global(t, (None,) * t.dim(), axis.mesh, (axis.name,)), dim, axis)
            return own if tiled else own.squeeze(dim)
        case collectives._Exchange(split, concat, True) if split != concat:
            return _apart(_together(t, concat, axis), split, axis)
    result, is_apart = op.run(_together(t.unsqueeze(0), 0, axis))
    return _apart(result, 0, axis).squeeze(0) if is_apart else result


def _together(t: Tensor, dim: int, axis: manual.ManualAxis) -> Tensor:
    """The devices' values one after another along the dimension."""
    return to_global(t, _along(t, dim, axis), axis.mesh)


def _apart(t: Tensor, dim: int, axis: manual.ManualAxis) -> Tensor:
    """Each device's part of the dimension."""
    return to_local(t, _along(t, dim, axis), axis.mesh)


def _along(t: Tensor, dim: int, axis: manual.ManualAxis) -> list[str | None]:
    return [axis.name if d == dim else None for d in range(t.dim())]


@contextlib.contextmanager
def entered_again(axes: Sequence[manual.ManualAxis]) -> Iterator[None]:
    """A context in which exactly these axes are entered."""
    for axis in axes:
        _C.enter_manual(axis.mesh._text, [axis.name], axis.size, False)
    try:
        with manual.entered_again(list(axes)):
            yield
    finally:
        for _ in axes:
            _C.leave_manual()


def run(region: manual.Region, args: tuple[Any, ...]) -> Any:
    leaves, form, specs = region._arguments(args)
    sizes: manual._Sizes = {}
    inner = [
        leaf
        if spec is None
        else _enter(region, leaf, spec, functools.partial(manual._argument, form, i), sizes)
        for i, (leaf, spec) in enumerate(zip(leaves, specs))
    ]
    outside = manual.entered()
    axes = [
        LocalAxis(region.mesh, name, region.layouts.sizes[name], len(outside) + i + 1)
        for i, name in enumerate(region.axes)
    ]
    devices = math.prod(axis.size for axis in axes)
    _C.enter_manual(region.mesh._text, region.axes, devices, region.check_vma)
    try:
        with manual.entered_again([*outside, *axes]):
            try:
                outputs = region.f(*manual._tree(inner, form))
            except Exception as error:
                region._explain(error)
                raise
            leaves, results = region._results(outputs)
            for axis in reversed(axes):
                leaves = [_checked(region, axis, t, i, results) for i, t in enumerate(leaves)]
    finally:
        _C.leave_manual()
    merged = [
        _leave(region, t, results.specs[i], functools.partial(results.where, i), sizes)
        if isinstance(t, Tensor)
        else t
        for i, t in enumerate(leaves)
    ]
    return manual._tree(merged, results.form)


def _enter(region: manual.Region, t: Any, spec: PartitionSpec, where: Any, known: Any) -> Any:
    """A device's part of an argument."""
    if not isinstance(t, Tensor):
        return t
    spec, way = manual._way_in(region, t, spec, where)
    if region.uneven:
        for dim, entry in enumerate(spec):
            if axes := manual._axes_of(entry):
                known.setdefault((axes, way.shard[dim]), set()).add(t.shape[dim])
    t = region.layouts.reshard(t, spec)
    if way.missing is not None:  # zeros where the last shards end, for which nothing is sent
        t = F.pad(t, [n for behind in reversed(way.missing) for n in (0, behind)])
        t = region.layouts.reshard(t, spec)
    return to_local(t, spec, region.mesh) if way.axes else t


def _checked(region: manual.Region, axis: LocalAxis, t: Any, position: int, results: Any) -> Any:
    """The result as one that varies along the axis exactly if its spec names the axis."""
    if not isinstance(t, Tensor):
        return t
    spec = results.specs[position]
    if spec is not None and axis.name in region.layouts.names(spec):
        return vary(t, axis)
    if not manual.varies(t, axis):
        return t
    if region.check_vma:
        raise ValueError(
            f"shard_map: {manual._name(region.f)}: {results.where(position)} varies along "
            f"axis {axis.name!r}, which its spec {spec!r} does not name; name it, or combine "
            f"the devices' values, for instance by psum(…, {axis.name!r})"
        )
    return _together(t.unsqueeze(0), 0, axis).select(0, 0)


def _leave(region: manual.Region, t: Tensor, spec: PartitionSpec, where: Any, known: Any) -> Tensor:
    """The result as a whole."""
    ends = {}
    for dim, entry in enumerate(spec):
        names = manual._axes_of(entry)
        found = known.get((names, t.shape[dim]), set()) if names else set()
        if len(found) > 1:
            raise ValueError(
                f"shard_map: {manual._name(region.f)}: {where()}: dimension {dim} has shards of "
                f"{t.shape[dim]} along {', '.join(map(repr, names))}, as have dimensions of "
                f"arguments of sizes {' and '.join(map(str, sorted(found)))}, so that its own size "
                "is not known; return it with one more dimension, t[None], that is sharded in "
                "place of this one"
            )
        ends.update(dict.fromkeys([dim] if found else [], next(iter(found), 0)))
    if region.layouts.names(spec):
        t = to_global(t, spec, region.mesh)
    t = region.layouts.reshard(t, spec)
    for dim, end in ends.items():
        if end < t.shape[dim]:
            t = region.layouts.reshard(t.narrow(dim, 0, end), spec)
    return t


def _at_border_batch(op: Any, info: Any, in_dims: Any, x: Tensor, size: Any, *text: str) -> Any:
    if in_dims[0] is None:
        return op(x, size, *text), None
    x = x.movedim(in_dims[0], 0)
    border = "(None, " + text[0][1:] if text[0][1] != ")" else "(None,)" + text[0][2:]
    return op(x, [x.shape[0], *size], border, text[1]), 0


@functools.cache
def prepare() -> None:
    """What is needed before the first region."""
    _compat.let_regions_see_no_higher_order_ops()
    for name in ("to_local", "to_global"):
        op = getattr(torch.ops.spmd, name).default
        torch.library.register_vmap(f"spmd::{name}", functools.partial(_at_border_batch, op))
