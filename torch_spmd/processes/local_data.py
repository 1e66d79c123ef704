# SPDX-License-Identifier: Apache-2.0
"""The processes that run one script on the devices of all of them (docs/processes.md)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.shards import host_data
from torch_spmd.sharding.spec import (
    SpecLike,
    blocks,
    check_blocks,
    of_rank,
    to_spec,
    without_blocks,
)

Interval = tuple[int, int]


def process_index() -> int:
    """The number of this process among those of the job, from 0; 0 if there is one process.

    Example:
        >>> import torch_spmd as spmd
        >>> if spmd.processes.process_index() == 0:
        ...     print("printed once")
        printed once
    """
    return _C.process()[0]


def process_count() -> int:
    """The number of processes that share the devices; 1 without torch.distributed.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.processes.process_count()
        1
    """
    return _C.process()[1]


def local_devices() -> tuple[int, ...]:
    """The ids of the devices that this process runs, in order; all of them if it is the only one.

    Example:
        >>> import torch_spmd as spmd
        >>> len(spmd.processes.local_devices()) == spmd.config.device_count()
        True
    """
    index, count, _ = _C.process()
    each = _C.device_count() // count
    return tuple(range(index * each, (index + 1) * each))


def from_process_local(
    local: Tensor,
    mesh: Mesh | None,
    spec: SpecLike,
    global_shape: Sequence[int] | None = None,
) -> Tensor:
    """A tensor on `spmd`, marked, of which each process gives the part that its own devices hold.

    For data that no process has whole, such as the rows of a batch that this process has read. All
    processes call it. Along each dimension a process gives what its devices hold, in the order of
    the whole tensor; what several processes hold, each of them gives. The result is detached.

    Args:
        local: this process's part, a dense tensor. A process that has no device in the mesh gives
            one without elements.
        mesh: the mesh; None means the global one.
        spec: how the whole tensor is sharded.
        global_shape: the sizes of the whole tensor. None: along each dimension what the processes
            give, put together.

    Errors, the same in all processes: TypeError for an argument of another kind; ValueError if a
        part is not of the size that the process's devices hold, dtypes, meshes or specs differ,
        the devices of a process hold parts that are no block of rows and columns, or sizes cannot
        be found without `global_shape`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("data",))
        >>> rows = torch.arange(12.0).view(6, 2)  # one process gives all of them
        >>> x = spmd.processes.from_process_local(rows, mesh, ("data", None))
        >>> [tuple(shard.data.shape) for shard in spmd.local_shards(x)]
        [(2, 2), (2, 2), (2, 2), (0, 2)]
    """
    caller = "from_process_local"
    given: dict[str, Any] = {}
    try:
        mesh = mesh_or_global(caller, mesh)
        spec = to_spec(spec)
        host = host_data(caller, "local", local)
        spec = of_rank(spec, host.dim())
        if len(spec) > host.dim():
            raise ValueError(
                f"{caller}: local has {host.dim()} dimensions, and the spec has {len(spec)} entries"
            )
        given = {
            "shape": list(host.shape),
            "dtype": str(host.dtype),
            "mesh": repr(mesh),
            "spec": repr(spec),
            "whole": None,
        }
        if global_shape is not None:
            given["whole"] = _arguments.integers(
                caller, "global_shape", global_shape, least=0, most_items=64
            )
            if len(given["whole"]) != host.dim():
                raise ValueError(
                    f"{caller}: local has {host.dim()} dimensions, and global_shape has "
                    f"{len(given['whole'])}"
                )
    except (TypeError, ValueError) as error:
        given = {"error": [type(error).__name__, str(error)]}
        if _C.process()[1] == 1:
            raise
    everyone = [json.loads(text) for text in _C.say(json.dumps(given), f"calls {caller}")]
    _raise_first(everyone)
    assert mesh is not None
    _check_alike(everyone)
    shapes = [tuple(theirs["shape"]) for theirs in everyone]
    whole = everyone[0]["whole"]
    marked = to_spec(spec)
    if whole is None:
        whole = _whole_shape(mesh, marked, shapes)
    check_blocks(caller, marked, whole)
    plain, sizes = without_blocks(marked, whole)
    held = _held(mesh, plain, sizes)
    for process, (parts, shape) in enumerate(zip(held, shapes)):
        wanted = parts.shape(marked)
        if not parts.is_block:
            raise ValueError(
                f"{caller}: the parts that the devices of process {process} hold of "
                f"{tuple(whole)} are no block; give them one by one: from_local_shards"
            )
        if wanted != shape and math.prod(wanted) + math.prod(shape) > 0:
            raise ValueError(
                f"{caller}: process {process} gives {shape}, and its devices hold {wanted} of "
                f"{tuple(whole)}"
            )
    mine = held[_C.process()[0]]
    shards = mine.shards(host.reshape(mine.sizes()))
    result: Tensor = _C.from_local_shards(shards, mesh._core, plain, sizes)
    return result if len(sizes) == len(whole) else result.view(whole)


def _held(mesh: Mesh, spec: Any, sizes: Sequence[int]) -> list[_Held]:
    """By process."""
    _, processes, _ = _C.process()
    each = _C.device_count() // processes
    boxes = _C.boxes_of(mesh._core, spec, list(sizes))
    by_process: list[dict[Any, None]] = [{} for _ in range(processes)]
    for device, box in boxes:
        # What is on a mesh of one device is in every process.
        for process in [device // each] if len(boxes) > 1 else range(processes):
            if all(begin < end for begin, end in box):
                by_process[process][box] = None
    return [_Held(list(found), len(sizes)) for found in by_process]


class _Held:
    """What the devices of a process hold of a tensor: along each dimension some intervals. A
    dimension of blocks is two dimensions here."""

    def __init__(self, boxes: Sequence[Any], dims: int) -> None:
        self._dims = dims
        self.intervals = [sorted({box[d] for box in boxes}) for d in range(dims)]
        self.has_any = bool(boxes)
        self.is_block = len(boxes) == math.prod(map(len, self.intervals)) or not boxes

    def sizes(self) -> list[int]:
        if not self.has_any:
            return [0] * self._dims
        return [sum(end - begin for begin, end in dim) for dim in self.intervals]

    def shape(self, spec: Any) -> tuple[int, ...]:
        """The sizes of the process's part, with each dimension of blocks as one."""
        sizes = iter(self.sizes())
        return tuple(
            next(sizes) * next(sizes) if isinstance(dim, blocks) and dim.n > 1 else next(sizes)
            for dim in spec
        )

    def shards(self, local: Tensor) -> list[tuple[Any, ...]]:
        if not self.has_any:
            return [(local, ((0, 0),) * self._dims, 0, 0)]
        choices = []
        for dim in self.intervals:
            starts = itertools.accumulate((end - begin for begin, end in dim), initial=0)
            choices.append([(interval, start) for interval, start in zip(dim, starts)])
        result = []
        for choice in itertools.product(*choices):
            part = local[tuple(slice(at, at + end - begin) for (begin, end), at in choice)]
            result.append((part, tuple(interval for interval, _ in choice), 0, 0))
        return result


def _raise_first(everyone: Sequence[dict[str, Any]]) -> None:
    for process, theirs in enumerate(everyone):
        if "error" in theirs:
            kind, text = theirs["error"]
            raise {"TypeError": TypeError}.get(kind, ValueError)(f"{text} (in process {process})")


def _check_alike(everyone: Sequence[dict[str, Any]]) -> None:
    for process, theirs in enumerate(everyone):
        for what, name in (
            ("dtype", "dtype"),
            ("mesh", "mesh"),
            ("spec", "spec"),
            ("whole", "global_shape"),
        ):
            if theirs[what] != everyone[0][what]:
                raise ValueError(
                    f"from_process_local: {name} is {everyone[0][what]} in process 0, and "
                    f"{theirs[what]} in process {process}"
                )
        if len(theirs["shape"]) != len(everyone[0]["shape"]):
            raise ValueError(
                f"from_process_local: local has {len(everyone[0]['shape'])} dimensions in process "
                f"0, and {len(theirs['shape'])} in process {process}"
            )


def _whole_shape(mesh: Mesh, spec: Any, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """The sizes of which the processes give parts of these shapes."""
    # Which processes hold the same along a dimension does not depend on its size.
    plain, sizes = without_blocks(spec, [_n(dim) * mesh.size for dim in spec])
    held = [parts.intervals for parts in _held(mesh, plain, sizes)]
    result = []
    at = 0
    for d, dim in enumerate(spec):
        at += 1 if _n(dim) > 1 else 0  # the dimension within the blocks
        groups: dict[tuple[Interval, ...], list[int]] = {}
        for process, intervals in enumerate(held):
            if intervals[at]:
                groups.setdefault(tuple(intervals[at]), []).append(process)
        at += 1
        every = [interval for group in groups for interval in group]
        if len(set(every)) != len(every):
            raise ValueError(
                f"from_process_local: the processes hold parts of dimension {d} that overlap, from "
                "which its size cannot be found; give global_shape"
            )
        for group, members in groups.items():
            # Processes that give nothing need not know the sizes of the others.
            with_elements = [p for p in members if math.prod(shapes[p])] or members[:1]
            groups[group] = with_elements
            first, *others = with_elements
            for process in others:
                if shapes[process][d] != shapes[first][d]:
                    raise ValueError(
                        f"from_process_local: processes {first} and {process} hold the same along "
                        f"dimension {d}, and give {shapes[first]} and {shapes[process]}"
                    )
        result.append(sum(shapes[group[0]][d] for group in groups.values()))
    return result


def _n(dim: Any) -> int:
    return dim.n if isinstance(dim, blocks) else 1
