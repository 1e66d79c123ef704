# SPDX-License-Identifier: Apache-2.0
"""The search for specs: patterns, then one parameter after the other, priced by the compiler.

A parameter of a layer that is repeated stands for those of all equal layers; it is a `Role`. A
candidate gives each role a spec and the batch its axes. Its price is extrapolated from steps with
few layers: what the step with one layer of each run takes, and for each run n - 1 times what a
second layer adds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from torch_spmd import _C
from torch_spmd.planning.traced import Program, Recorded, Run
from torch_spmd.sharding.spec import PartitionSpec, blocks

Axes = tuple[str, ...]
Lowered = tuple[Recorded, list[_C.TracedGraph]]
MOST_SWEEPS = 3  # over all parameters
STARTS = 2  # candidates from which the search goes on


class Price(NamedTuple):
    """A step on a machine; bytes of one device."""

    seconds: float
    exposed_seconds: float
    peak_bytes: float
    input_bytes: float
    wire_bytes: float
    model_seconds: float  # the step's if it reached the peak of all devices

    def plus(self, times: int, more: Price, than: Price) -> Price:
        """This, and `times` times what `more` takes more than `than`."""
        return Price(
            *(a + times * max(0.0, b - c) for a, b, c in zip(self, more, than, strict=True))
        )

    def towards(self, other: Price, part: float) -> Price:
        return Price(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Role:
    """A parameter, or those of equal layers in the same place. `fixed`: what the user says."""

    name: str
    shape: tuple[int, ...]
    bytes: int
    names: tuple[str, ...]
    run: Run | None
    fixed: PartitionSpec | None


@dataclass(frozen=True)
class Candidate:
    """`specs` by role, in the order of the roles."""

    specs: tuple[PartitionSpec, ...]
    batch: Axes
    origin: str

    def with_specs(self, changed: Mapping[int, PartitionSpec], origin: str = "") -> Candidate:
        specs = tuple(changed.get(i, spec) for i, spec in enumerate(self.specs))
        return replace(self, specs=specs, origin=origin or self.origin)


class Priced(NamedTuple):
    candidate: Candidate
    price: Price


class Space:
    """The candidates on one mesh of one machine, and their prices."""

    def __init__(
        self,
        mesh: _C.Mesh,
        on: str,
        roles: Sequence[Role],
        whole: Recorded,
        one_of_each: Recorded,
        two_of: Mapping[Run, Recorded],
        memory_bytes: int,
        batch_rank: Sequence[int],
    ) -> None:
        self.mesh, self.roles = mesh, list(roles)
        self.pricing = _C.Pricing(on)
        self.memory_bytes, self.batch_rank = memory_bytes, batch_rank
        self.sizes = {
            name: size for name, size in zip(mesh.axis_names, mesh.mesh_shape) if size > 1
        }
        self._whole, self._one, self._two = whole, one_of_each, two_of
        self.known: dict[Any, Price] = {}
        self.compiled = 0
        self.history: list[Priced] = []

    # Lowered for this mesh when they are first asked for: few meshes need the whole model.

    @functools.cached_property
    def whole(self) -> Lowered:
        return self._whole, self._whole.graphs(self.mesh)

    @functools.cached_property
    def one(self) -> Lowered:
        return self.whole if self._one is self._whole else (self._one, self._one.graphs(self.mesh))

    @functools.cached_property
    def two(self) -> dict[Run, Lowered]:
        return {run: (two, two.graphs(self.mesh)) for run, two in self._two.items()}

    # --- prices ---

    def price(self, candidate: Candidate) -> Price:
        """Of all layers, by those that were traced."""
        by_name = self.by_name(candidate)
        one = self.price_of(*self.one, by_name, candidate.batch)
        two = {
            run: self.price_of(*lowered, by_name, candidate.batch)
            for run, lowered in self.two.items()
        }
        total = self._total(one, two)
        if two and self.rank(total)[0] > 0:
            total = self._with_less_memory(candidate, one, two)
        self.history.append(Priced(candidate, total))
        return total

    def _total(self, one: Price, two: Mapping[Run, Price]) -> Price:
        total = one
        for run, of_run in two.items():
            total = total.plus(run.length - 1, of_run, one)
        return total

    def _with_less_memory(
        self, candidate: Candidate, one: Price, two: Mapping[Run, Price]
    ) -> Price:
        """Where the whole model does not fit, the compiler gathers and computes again so much that
        it does: as much as is needed of what it does if no layer may hold anything."""
        held = self._total(one, two)
        layers = sum(max(0.0, of_run.peak_bytes - one.peak_bytes) for of_run in two.values())
        limit = int(max(one.peak_bytes - layers, one.input_bytes))
        if not 0 < limit < self.memory_bytes:
            return held
        by_name = self.by_name(candidate)

        def price(lowered: Lowered) -> Price:
            return self.price_of(*lowered, by_name, candidate.batch, limit)

        again = self._total(price(self.one), {run: price(self.two[run]) for run in two})
        if again.peak_bytes >= held.peak_bytes:
            return held
        part = (self.memory_bytes - again.peak_bytes) / (held.peak_bytes - again.peak_bytes)
        between = again.towards(held, max(0.0, part))
        return between._replace(peak_bytes=max(again.peak_bytes, float(self.memory_bytes)))

    def price_of_one(self, candidate: Candidate) -> Price:
        """Of the step with one layer of each run."""
        return self.price_of(*self.one, self.by_name(candidate), candidate.batch)

    def by_name(self, candidate: Candidate) -> dict[str, PartitionSpec]:
        return {
            name: spec
            for role, spec in zip(self.roles, candidate.specs, strict=True)
            for name in role.names
        }

    def price_of(
        self,
        recorded: Recorded,
        graphs: Sequence[_C.TracedGraph],
        specs: Mapping[str, PartitionSpec],
        batch: Axes,
        memory_limit: int = 0,
    ) -> Price:
        """`memory_limit`: bytes that a program may need; 0: what the machine has."""
        names = recorded.programs[0].of_parameter
        key = (id(graphs), batch, memory_limit, tuple(specs[name] for name in names))
        if key not in self.known:
            prices = [
                self._price_of_program(program, graph, specs, batch, memory_limit)
                for program, graph in zip(recorded.programs, graphs, strict=True)
            ]
            self.compiled += 1
            self.known[key] = prices[0]
            if len(prices) > 1:
                shapes = recorded.programs[0].shapes
                parameters = sum(
                    self._bytes_of_shard(shapes[of_name[0]].tensor, specs[name])
                    for name, of_name in names.items()
                )
                self.known[key] = _with_update(prices[0], prices[1], parameters)
        return self.known[key]

    def _price_of_program(
        self,
        program: Program,
        graph: _C.TracedGraph,
        specs: Mapping[str, PartitionSpec],
        batch: Axes,
        memory_limit: int,
    ) -> Price:
        marks: list[tuple[int, Any]] = [
            (number, specs[name])
            for name, numbers in program.of_parameter.items()
            for number in numbers
        ]
        for number, rank in zip(program.of_batch, self.batch_rank, strict=False):
            if rank > 0:
                marks.append((number, batch_spec(batch, rank)))
        found = self.pricing.price(graph, marks, memory_limit)
        return Price(
            found["seconds"],
            found["exposed_seconds"],
            found["peak_bytes"],
            found["input_bytes"],
            found["wire_bytes"],
            found["mfu"] * found["seconds"],
        )

    def _bytes_of_shard(self, tensor: Tensor, spec: PartitionSpec) -> float:
        shards = math.prod(self.sizes.get(axis, 1) for entry in spec for axis in axes_of(entry))
        return tensor.numel() * tensor.element_size() / shards

    def rank(self, price: Price) -> tuple[float, float, float]:
        """Less is better: bytes above the memory, then seconds, then bytes."""
        excess = max(0.0, price.peak_bytes - self.memory_bytes) if self.memory_bytes else 0.0
        return excess, price.seconds, price.peak_bytes

    # --- patterns ---

    def patterns(self, batch: Axes) -> Iterator[Candidate]:
        """What people write: data parallel, fully sharded, tensor parallel, both."""
        others = tuple(axis for axis in self.sizes if axis not in batch)
        yield self.pattern("data parallel" if batch else "replicated", batch, lambda role: {})
        parts = ((axis,) for axis in batch if len(batch) > 1)  # replicated over the others
        for axes in dict.fromkeys(a for a in (batch, tuple(self.sizes), *parts) if a):
            yield self.pattern(
                "fully sharded", batch, functools.partial(self._largest, axes, lambda role: {})
            )
        for dims in ((0, 0, 0), (1, 1, 1), (0, 1, 0), (0, 1, 1)) if others else ():
            of_role = functools.partial(self._assigned, others, dims)
            yield self.pattern("tensor parallel", batch, of_role)
            if batch:
                both = functools.partial(self._largest, batch, of_role)
                yield self.pattern("tensor parallel and fully sharded", batch, both)

    def uses_axes_apart(self, candidate: Candidate) -> bool:
        """Whether the mesh has one axis, or the candidate is none of those of such a mesh."""
        together: tuple[set[str], ...] = (set(), set(self.sizes))
        entries = [entry for spec in candidate.specs for entry in spec]
        used = [set(candidate.batch), *(set(axes_of(entry)) for entry in entries)]
        return len(self.sizes) < 2 or any(axes not in together for axes in used)

    def pattern(
        self, origin: str, batch: Axes, of_role: Callable[[Role], dict[int, Axes]]
    ) -> Candidate:
        """`of_role` gives the axes of each dimension."""
        specs = (
            role.fixed if role.fixed is not None else spec_of(role.shape, of_role(role))
            for role in self.roles
        )
        return Candidate(tuple(specs), batch, origin)

    def _assigned(self, axes: Axes, dims: tuple[int, int, int], role: Role) -> dict[int, Axes]:
        """`axes` on the dimension of a matrix that `dims` names for matrices that are higher than
        wide, wider than high, and square."""
        if len(role.shape) < 2:
            return {}
        high, wide = role.shape[:2]
        d = dims[0] if high > wide else dims[1] if wide > high else dims[2]
        return {d: axes} if self._divides(role.shape[d], axes) else {}

    def _largest(
        self, axes: Axes, before: Callable[[Role], dict[int, Axes]], role: Role
    ) -> dict[int, Axes]:
        """What `before` says, and `axes` on the largest other dimension of a matrix."""
        taken = before(role)
        if len(role.shape) < 2:
            return taken
        free = [
            d for d, size in enumerate(role.shape) if d not in taken and self._divides(size, axes)
        ]
        if not free:
            return taken
        return {**taken, max(free, key=lambda d: (role.shape[d], d)): axes}

    def _divides(self, size: int, axes: Iterable[str]) -> bool:
        shards = 1
        for axis in axes:
            shards *= self.sizes[axis]
        return size >= shards and size % shards == 0

    # --- options of one role ---

    def options(self, role: Role, now: PartitionSpec) -> list[PartitionSpec]:
        """`now` with one axis on another dimension that it divides, or on none."""
        found = []
        for axis in self.sizes:
            for place in (None, *range(len(role.shape))):
                of_dim: dict[int, Axes] = {}
                for d, entry in enumerate(now):
                    axes = tuple(a for a in axes_of(entry) if a != axis)
                    if d == place:
                        axes = tuple(a for a in self.sizes if a == axis or a in axes)
                    if axes:
                        of_dim[d] = axes
                if all(self._divides(role.shape[d], axes) for d, axes in of_dim.items()):
                    found.append(spec_of(role.shape, of_dim))
        return found

    def in_blocks(self, role: Role, spec: PartitionSpec) -> list[PartitionSpec]:
        """`spec` with a sharded dimension of two or three projections sharded block by block."""
        found = []
        for d, entry in enumerate(spec):
            axes = axes_of(entry)
            is_longest = role.shape[d] > max((*role.shape[:d], *role.shape[d + 1 :]), default=0)
            if not axes or isinstance(entry, blocks) or not is_longest:
                continue
            for n in (2, 3):
                if role.shape[d] % n == 0 and self._divides(role.shape[d] // n, axes):
                    changed = list(spec)
                    changed[d] = blocks(n, entry)
                    found.append(PartitionSpec(*changed))
        return found

    # --- descent ---

    def units(self) -> list[list[int]]:
        """Roles that change together: those of one shape, then each matrix, large ones first."""
        free = [i for i, role in enumerate(self.roles) if role.fixed is None]
        matrices = [i for i in free if len(self.roles[i].shape) > 1]
        weight = lambda i: self.roles[i].bytes * len(self.roles[i].names)  # noqa: E731
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i in free:
            by_shape.setdefault(self.roles[i].shape, []).append(i)
        groups = [unit for shape, unit in by_shape.items() if len(unit) > 1 and len(shape) > 1]
        vectors = [unit for shape, unit in by_shape.items() if len(shape) == 1]
        groups.sort(key=lambda unit: -sum(map(weight, unit)))
        singles = [[i] for i in sorted(matrices, key=weight, reverse=True)]
        return groups + singles + vectors

    def descend(self, start: Priced) -> Priced:
        """Changes one unit after the other while that helps."""
        best = start
        unchanged = 0
        units = self.units()
        for unit in itertools.islice(itertools.cycle(units), MOST_SWEEPS * len(units)):
            changed = best
            for specs in self._changes(unit, best.candidate):
                tried = best.candidate.with_specs(specs, "searched")
                if not self._may_be_better(tried, changed):
                    continue
                price = self.price(tried)
                if self.rank(price) < self.rank(changed.price):
                    changed = Priced(tried, price)
            unchanged = 0 if changed is not best else unchanged + 1
            best = changed
            if unchanged == len(units):
                break
        return best

    def _may_be_better(self, tried: Candidate, than: Priced) -> bool:
        """By the step with one layer of each run, which is compiled in half the time."""
        if not self.two:
            return True
        a, b = self.price_of_one(tried), self.price_of_one(than.candidate)
        fits = self.rank(than.price)[0] == 0
        return a.seconds < b.seconds if fits else a.peak_bytes < b.peak_bytes

    def _changes(self, unit: list[int], now: Candidate) -> Iterator[dict[int, PartitionSpec]]:
        role, spec = self.roles[unit[0]], now.specs[unit[0]]
        options = self.options(role, spec)
        if len(role.shape) > 1:
            options += self.in_blocks(role, spec)
        for option in options:
            if any(now.specs[i] != option for i in unit):
                yield {i: option for i in unit}


def _with_update(backward: Price, update: Price, parameters: float) -> Price:
    """Of both programs, one after the other. The backward pass does not take the optimizer's state,
    nor the update the batch, but they are held. Gradients are as large as the `parameters`."""
    state = max(0.0, update.input_bytes - 2 * parameters)
    batch = max(0.0, backward.input_bytes - parameters)
    return Price(
        backward.seconds + update.seconds,
        backward.exposed_seconds + update.exposed_seconds,
        max(backward.peak_bytes + state, update.peak_bytes + batch),
        backward.input_bytes + state,
        backward.wire_bytes + update.wire_bytes,
        backward.model_seconds + update.model_seconds,
    )


def spec_of(shape: Sequence[int], of_dim: Mapping[int, Axes]) -> PartitionSpec:
    entries: list[Any] = [None] * len(shape)
    for d, axes in of_dim.items():
        entries[d] = axes[0] if len(axes) == 1 else axes
    return PartitionSpec(*entries)


def batch_spec(axes: Axes, rank: int) -> PartitionSpec:
    return spec_of([0] * rank, {0: axes} if axes else {})


def axes_of(entry: Any) -> Axes:
    """Of an entry of a spec that this module has made."""
    if entry is None:
        return ()
    if isinstance(entry, blocks):
        return axes_of(entry.axes)
    return entry if isinstance(entry, tuple) else (entry,)
