# SPDX-License-Identifier: Apache-2.0
"""`use_spmd(auto=True)`: the inputs of pending work are sharded as a search proposes.

Where a step ends (`torch_xla.sync()`, `optimizer.step()`, a value that is read), the inputs of what
is pending that neither a mark nor an earlier program has placed are free. Candidates for them are
priced by compiling the work for the machine, as `planning.auto_shard` does (design 0036), and the
best is marked, for this program only: its results keep the shardings that follow, so the next step
finds its weights placed.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _C
from torch_spmd.device import optimizer_steps
from torch_spmd.planning import proposals
from torch_spmd.planning.search import STARTS, Axes, Candidate, Priced, Role, Space
from torch_spmd.planning.traced import Program, Recorded
from torch_spmd.torch_xla import _counts

MOST_ROLES = 48  # of more inputs, those of one shape are sharded alike
MOST_NODES = 150_000  # of all graphs that are compiled for one mesh: some 5 s of CPU time

Free = tuple[int, tuple[int, ...], int]  # the number of an input, its sizes, its bytes
Found = tuple[_C.Mesh, list[tuple[int, Any]]]

_found: dict[Any, Found | None] = {}
_is_on = False


def turn_on() -> None:
    global _is_on
    _is_on = True
    _install()


@functools.cache
def _install() -> None:
    """Has the places called where a step ends that are not torch_xla's own."""
    optimizer_steps.before_program.append(shard_pending)
    for name in ("cpu", "item", "tolist", "to"):
        setattr(Tensor, name, _sharding_first(getattr(Tensor, name)))


def is_on() -> bool:
    return _is_on


def _sharding_first(read: Any) -> Any:
    @functools.wraps(read)
    def wrapped(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "spmd" and (read.__name__ != "to" or _names_host(*args, **kwargs)):
            shard_pending()
        return read(self, *args, **kwargs)

    return wrapped


def _names_host(first: Any = None, *args: Any, device: Any = None, **kwargs: Any) -> bool:
    """Whether the arguments of `Tensor.to` ask for a copy on the host."""
    if isinstance(first, Tensor):
        first = first.device
    asked = (first, device, *args, kwargs.get("other"))
    return any(isinstance(value, (str, torch.device)) and "cpu" in str(value) for value in asked)


def shard_pending() -> None:
    """Marks the free inputs of what is pending. Without effect unless automatic sharding is on."""
    work = _C.pending_work() if _is_on else None
    if work is None:
        return
    key, meshes, free = work
    if not free:
        return
    sizes = os.environ.get("XLA_AUTO_SPMD_MESH", "")
    known = (key, sizes, _C.backend_name(), _C.device_count())
    if known not in _found:
        _counts.count("CompileWithAutoSharding")
        _found[known] = _search(meshes, free) if _C.device_count() > 1 else None
    found = _found[known]
    if found is not None:
        _C.mark_pending(*found)


def machine() -> str | None:
    """What is priced: the machine that the backend simulates (None), else as many H100."""
    if _C.backend_name().startswith("mock_"):
        return None
    return f"{_C.device_count()}xh100"


def mesh_of_environment() -> dict[str, int] | str:
    """XLA_AUTO_SPMD_MESH, such as "2,4"; "auto" if it is not set."""
    sizes = os.environ.get("XLA_AUTO_SPMD_MESH", "")
    if not sizes:
        return "auto"
    return {f"axis{axis}": int(size) for axis, size in enumerate(sizes.split(","))}


def _search(named: Sequence[_C.Mesh], free: Sequence[Free]) -> Found | None:
    """The marks of the best candidate; None, with a warning, if none can be priced, and None if it
    shards nothing. `named`: the meshes that the work names, of which the first is kept."""
    try:
        priced_for = proposals.known_machine(machine())
        asked = mesh_of_environment()
        meshes = list(named[:1])
        if asked != "auto" or not meshes:
            tried, _ = proposals.meshes_to_try(asked, priced_for["devices"], nn.Module())
            # No axis is that of a batch: the sizes in another order are the same.
            meshes = list({tuple(sorted(m.mesh_shape)): m for m in tried}.values())
        spaces = [_PendingSpace(mesh, priced_for, free) for mesh in meshes]
        best = min(
            ((space, space.best()) for space in spaces),
            key=lambda found: found[0].rank(found[1].price),
        )
    except (RuntimeError, TypeError, ValueError) as error:
        warnings.warn(
            f"use_spmd(auto=True): pending work stays as it is, since no sharding of it could be "
            f"proposed: {error}",
            stacklevel=4,
        )
        return None
    space, priced = best
    if not any(entry is not None for spec in priced.candidate.specs for entry in spec):
        return None
    specs = space.by_name(priced.candidate)
    return space.mesh, [(n, specs[name]) for name, of in space.numbers.items() for n in of]


class _EnoughError(Exception):
    """The search has compiled as much as it may."""


class _PendingGraphs(Recorded):
    def graphs(self, mesh: _C.Mesh) -> list[_C.TracedGraph]:
        return [_C.trace_pending(mesh)]


class _PendingSpace(Space):
    """The candidates for the free inputs, by name of their role in `numbers`."""

    def __init__(self, mesh: _C.Mesh, machine: dict[str, Any], free: Sequence[Free]) -> None:
        self.numbers: dict[str, list[int]] = {}
        roles = {}
        for number, shape, size in free:
            name = f"{shape} {size}" if len(free) > MOST_ROLES else str(number)
            self.numbers.setdefault(name, []).append(number)
            roles[name] = Role(name, shape, size, (name,), None, None)
        work = _PendingGraphs([Program(of_parameter=self.numbers)])
        on, memory = machine["name"], machine["memory_bytes"]
        super().__init__(mesh, on, list(roles.values()), work, work, {}, memory, [])

    def price(self, candidate: Candidate) -> Any:
        if self.compiled * self.whole[1][0].num_nodes() > MOST_NODES:
            raise _EnoughError
        return super().price(candidate)

    def in_blocks(self, role: Role, spec: Any) -> list[Any]:
        """None: the inputs have their form already."""
        return []

    def best(self) -> Priced:
        """Of the patterns of `planning.auto_shard`, of dimension 0 of everything over the axes, and
        of what comes of changing one input after the other."""
        axes = tuple(self.sizes)
        over_first = (self.pattern("dimension 0", (), lambda r: self._first(r, axes)),)
        try:
            starts = [Priced(c, self.price(c)) for c in (*self.patterns(()), *over_first)]
            starts.sort(key=self._rank_of)
            for start in starts[:STARTS]:
                self.descend(start)
        except _EnoughError:
            pass
        return min(self.history, key=self._rank_of)

    def _first(self, role: Role, axes: Axes) -> dict[int, Axes]:
        return {0: axes} if role.shape and self._divides(role.shape[0], axes) else {}

    def _rank_of(self, priced: Priced) -> tuple[float, float, float]:
        return self.rank(priced.price)
