# SPDX-License-Identifier: Apache-2.0
"""`local_map`: manual regions whose shardings are written as placements of DTensor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torch_spmd import _arguments
from torch_spmd._compat import pytree
from torch_spmd.regions.collectives import pmax, pmean, pmin, psum
from torch_spmd.regions.manual import Region
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_of
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import PartitionSpec

_SUMS = {"sum": psum, "avg": pmean, "max": pmax, "min": pmin}


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Any = None,
    in_placements: Any = None,
    in_grad_placements: Any = None,
    device_mesh: Mesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Any:
    """Runs a function on the shards of its arguments, as `local_map` of
    `torch.distributed.tensor.experimental` does. Without `func` it is a decorator.

    It is `shard_map` over all axes of the mesh, with placements in place of specs: for each axis
    `Shard(dim)`, `Replicate()`, or for a result `Partial()`, whose values the devices' are added up
    to. Inside, devices exchange data by `spmd.lax.psum` and the other collectives.

    Args:
        func: a function of tensors, trees of them and anything else.
        out_placements: the placements of the result, or a tuple of them, one for each value of the
            flattened result; None for what is no tensor.
        in_placements: a tuple of placements, one for each value of the flattened arguments; None
            for what is no tensor, or for a tensor of which each device sees the whole. Without it
            each tensor has the placements of its sharding.
        in_grad_placements: is accepted and not needed: a gradient is that of the whole tensor,
            whichever devices had a part in it.
        device_mesh: an spmd.Mesh; None means the global one.
        redistribute_inputs: arguments that are sharded otherwise are moved.

    Errors:
        TypeError: an argument of another kind, such as a placement that is none of the above.
        ValueError: placements of another number than the values or the axes of the mesh, an
            argument that is sharded otherwise without `redistribute_inputs`; as `shard_map`, which
            also refuses a replicated result that differs between devices.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch.distributed.tensor import Partial, Replicate, Shard
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> product = spmd.dtensor.local_map(
        ...     torch.mm,
        ...     out_placements=[Partial()],
        ...     in_placements=([Shard(1)], [Shard(0)]),
        ...     device_mesh=mesh,
        ... )
        >>> product(
        ...     torch.ones(2, 8, device="spmd"), torch.ones(8, 2, device="spmd")
        ... ).tolist()
        [[8.0, 8.0], [8.0, 8.0]]
    """
    mesh = mesh_or_global("local_map", device_mesh, "device_mesh")
    move = _arguments.boolean("local_map", "redistribute_inputs", redistribute_inputs)
    if func is None:
        return functools.partial(
            local_map,
            out_placements=out_placements,
            in_placements=in_placements,
            device_mesh=mesh,
            redistribute_inputs=move,
        )
    if not callable(func):
        raise TypeError(f"local_map: func must be a function; got {_arguments.shown(func)}")
    results = _by_value("out_placements", mesh, out_placements, results=True)
    given = None
    if in_placements is not None:
        given = _by_value("in_placements", mesh, in_placements, results=False)

    @functools.wraps(func)
    def on_shards(*args: Any, **kwargs: Any) -> Any:
        values, form = pytree.tree_flatten((args, kwargs))
        forms: list[Any] = []

        def shards(*values: Any) -> list[Any]:
            args, kwargs = pytree.tree_unflatten(list(values), form)
            outputs, output_form = pytree.tree_flatten(func(*args, **kwargs))
            forms.append(output_form)
            each = _results(results, outputs)
            return [_reduced(mesh, t, placements) for t, placements in zip(outputs, each)]

        def out_specs(outputs: list[Any]) -> list[Any]:
            each = _results(results, outputs)
            return [_spec(mesh, t, placements) for t, placements in zip(outputs, each)]

        specs = tuple(_in_specs(mesh, values, given, move))
        functools.update_wrapper(shards, func)
        region = Region(shards, mesh, mesh.axis_names, specs, out_specs, check_vma=True)
        return pytree.tree_unflatten(region.run(tuple(values)), forms[0])

    return on_shards


Placements = tuple[Any, ...]


def _is_placement(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("is_shard", "is_replicate", "is_partial"))


def _by_value(what: str, mesh: Mesh, given: Any, results: bool) -> list[Placements | None]:
    """By flattened value its placements, one for each axis of the mesh, or None."""
    wanted = "placements, one for each axis of the mesh"
    items = _arguments.items("local_map", what, given, f"a tuple of {wanted}")
    if results and items and all(_is_placement(item) for item in items):
        items = [items]
    result: list[Placements | None] = []
    for item in items:
        if item is None:
            result.append(None)
            continue
        placements = tuple(_arguments.items("local_map", what, item, wanted))
        for placement in placements:
            if not _is_placement(placement):
                raise TypeError(
                    f"local_map: {what} must be {wanted}: Shard(dim), Replicate() or Partial() of "
                    f"torch.distributed.tensor; got {_arguments.shown(placement)}"
                )
            if placement.is_partial() and (not results or placement.reduce_op not in _SUMS):
                raise ValueError(
                    f"local_map: {what} has {placement}; a result can be a Partial() of 'sum', "
                    "'avg', 'max' or 'min', and an argument is sharded or replicated"
                )
        if len(placements) != len(mesh.axis_names):
            raise ValueError(
                f"local_map: {what} has {len(placements)} placements for a mesh with "
                f"{len(mesh.axis_names)} axes: {_arguments.plain(placements)}"
            )
        result.append(placements)
    return result


def _spec(mesh: Mesh, t: Any, placements: Placements | None) -> PartitionSpec | None:
    if not isinstance(t, Tensor):
        return None
    entries: list[list[str]] = [[] for _ in range(t.dim())]
    for axis, placement in zip(mesh.axis_names, placements or ()):
        if placement.is_shard():
            if not -t.dim() <= placement.dim < t.dim():
                raise ValueError(
                    f"local_map: {placement} shards a dimension that a tensor of shape "
                    f"{tuple(t.shape)} does not have"
                )
            entries[placement.dim].append(axis)
    return PartitionSpec(*(tuple(e) if len(e) > 1 else e[0] if e else None for e in entries))


def _in_specs(
    mesh: Mesh, values: list[Any], given: list[Placements | None] | None, move: bool
) -> list[PartitionSpec | None]:
    if given is not None and len(given) != len(values):
        raise ValueError(
            f"local_map: in_placements has placements for {len(given)} values, but the function "
            f"was called with {len(values)}"
        )
    specs = []
    for i, t in enumerate(values):
        if isinstance(t, Tensor):
            _arguments.tensor("local_map", t, f"argument {i}")
            mark = mark_of(t)
            has = None if mark is None else mark.spec
            spec = has if given is None and has is not None else None
            if spec is None:
                spec = _spec(mesh, t, given[i] if given is not None else None)
            if has is not None and tuple(has) != tuple(spec or ()) and not move:
                raise ValueError(
                    f"local_map: argument {i} is sharded as {has!r}, and in_placements say "
                    f"{spec!r}; reshard it, or pass redistribute_inputs=True"
                )
            specs.append(spec)
        else:
            specs.append(None)
    return specs


def _results(results: list[Placements | None], outputs: list[Any]) -> list[Placements | None]:
    if len(results) != len(outputs):
        raise ValueError(
            f"local_map: out_placements has placements for {len(results)} values, but the function "
            f"returned {len(outputs)}"
        )
    for t, placements in zip(outputs, results):
        if (placements is None) == isinstance(t, Tensor):
            raise ValueError(
                "local_map: out_placements has placements for tensors and None for anything else; "
                f"got {_arguments.plain(placements)} for {_arguments.shown(t)}"
            )
    return results


def _reduced(mesh: Mesh, t: Any, placements: Placements | None) -> Any:
    for axis, placement in zip(mesh.axis_names, placements or ()):
        if placement.is_partial():
            t = _SUMS[placement.reduce_op](t, axis)
    return t
