# SPDX-License-Identifier: Apache-2.0
"""Ways to shard a model on a machine: those that the search finds, compiled whole and ranked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from torch_spmd import _C
from torch_spmd._mixture import mixtures
from torch_spmd._search import STARTS, Axes, Price, Priced, Role, Space
from torch_spmd._traced import Leaf, Recorded, Run, record, runs_of, shortened
from torch_spmd._training_step import TrainingStep
from torch_spmd.modules import Pattern, matching_spec
from torch_spmd.spec import PartitionSpec

MOST_WHOLE = 6  # candidates that are compiled whole


@dataclass(frozen=True)
class Estimate:
    """What a step takes by the model of `spmd.debug.timeline`; bytes are of one device.

    `exposed_seconds`: communication that no computation hides; `mfu` as in `timeline`;
    `memory_bytes`: what the device has, 0 if that is not limited.
    """

    seconds: float
    exposed_seconds: float
    mfu: float
    peak_bytes: int
    input_bytes: int
    wire_bytes: int
    memory_bytes: int

    @property
    def fits(self) -> bool:
        return self.memory_bytes == 0 or self.peak_bytes <= self.memory_bytes


@dataclass(frozen=True)
class Alternative:
    """A way to shard the model, compiled whole: the axes of the mesh, the axes over which dimension
    0 of the batch is sharded, specs by parameter, and what a step takes."""

    origin: str
    mesh: dict[str, int]
    batch: Axes
    specs: dict[str, PartitionSpec]
    estimate: Estimate


class Search:
    """The candidates for a model on a machine."""

    def __init__(
        self,
        model: nn.Module,
        leaves: dict[nn.Parameter, Leaf],
        fixed: Mapping[Pattern, PartitionSpec],
        step: TrainingStep,
        machine: dict[str, Any],
    ) -> None:
        self.machine = machine
        names = {p: leaf.names for p, leaf in leaves.items()}
        runs = runs_of(model)

        def recorded(kept: dict[Run, int] | None) -> Recorded:
            with shortened(kept, runs):
                return record(step, model, names)

        self.whole = self.one = recorded(None)
        self.two: dict[Run, Recorded] = {}
        try:
            ones = {run: 1 for run in runs}
            one = recorded(ones) if runs else self.whole
            self.two = {run: recorded({**ones, run: 2}) for run in runs}
            self.one = one
        except Exception:  # the model does not work with fewer of its layers
            runs, self.two = [], {}
            self.whole = self.one = recorded(None)  # an op that fails ends what was recorded
        self.roles = _roles(leaves, runs, fixed)
        self.batch = [tuple(self.whole.shapes[i].tensor.shape) for i in self.whole.of_batch]

    def alternatives(self, meshes: list[_C.Mesh]) -> list[Alternative]:
        """Compiled whole, the best one first."""
        spaces = [self._space(mesh) for mesh in meshes]
        marked = [m for space in spaces[:1] for m in space.one[1].meshes()[1:]]
        if marked:  # marks in the model's code
            spaces = [self._space(mesh) for mesh in marked[:1]]
        patterns = [
            (space, Priced(candidate, space.price(candidate)))
            for space in spaces
            for batch in self._batches(space)
            for candidate in space.patterns(batch)
        ]
        patterns.sort(key=lambda found: found[0].rank(found[1].price))
        best = [
            (space, space.descend(start))
            for space, start in _different(patterns, lambda f: (id(f[0]), f[1].candidate.batch))[
                :STARTS
            ]
        ]
        best.sort(key=lambda found: found[0].rank(found[1].price))
        by_origin = _different(patterns, lambda f: f[1].candidate.origin)
        chosen = _different(
            best + by_origin, lambda f: (id(f[0]), f[1].candidate.specs, f[1].candidate.batch)
        )
        chosen = chosen[:MOST_WHOLE] + [f for f in chosen[MOST_WHOLE:] if f in by_origin]
        graphs = {id(space): self.whole.graph(space.mesh) for space in spaces}
        found = [
            self._compiled(space, graphs[id(space)], space.by_name(priced.candidate),
                           priced.candidate.batch, priced.candidate.origin)
            for space, priced in chosen
        ]  # fmt: skip
        found += self._mixed(best, graphs, found)
        return sorted(found, key=lambda a: _rank(a.estimate))

    def _mixed(
        self,
        best: list[tuple[Space, Priced]],
        graphs: dict[int, _C.TracedGraph],
        found: list[Alternative],
    ) -> list[Alternative]:
        """Choices by layer, where the fastest does not fit."""
        fastest = min(found, key=lambda a: a.estimate.seconds)
        if fastest.estimate.fits:
            return []
        space, priced = best[0]
        mixed = []
        graph = graphs[id(space)]
        for specs in mixtures(
            space, priced, lambda s: self._price(space, graph, s, priced.candidate.batch)
        ):
            mixed.append(
                self._compiled(space, graph, specs, priced.candidate.batch, "layers that differ")
            )
        return mixed

    def _space(self, mesh: _C.Mesh) -> Space:
        return Space(
            mesh,
            self.machine["name"],
            self.roles,
            self.one,
            self.two,
            self.machine["memory_bytes"],
            [len(shape) for shape in self.batch],
        )

    def _batches(self, space: Space) -> list[Axes]:
        """Sets of axes that divide dimension 0 of every tensor of the batch."""
        found: list[Axes] = []
        for count in range(len(space.sizes), -1, -1):
            for axes in itertools.combinations(space.sizes, count):
                shards = 1
                for axis in axes:
                    shards *= space.sizes[axis]
                if all(not shape or shape[0] % shards == 0 for shape in self.batch):
                    found.append(axes)
        return found

    def _price(
        self, space: Space, graph: _C.TracedGraph, specs: Mapping[str, PartitionSpec], batch: Axes
    ) -> Price:
        return space.price_of(self.whole, graph, specs, batch)

    def _compiled(
        self,
        space: Space,
        graph: _C.TracedGraph,
        specs: dict[str, PartitionSpec],
        batch: Axes,
        origin: str,
    ) -> Alternative:
        price = self._price(space, graph, specs, batch)
        estimate = Estimate(
            price.seconds,
            price.exposed_seconds,
            price.model_seconds / price.seconds if price.seconds else 0.0,
            int(price.peak_bytes),
            int(price.input_bytes),
            int(price.wire_bytes),
            self.machine["memory_bytes"],
        )
        mesh = dict(zip(space.mesh.axis_names, space.mesh.mesh_shape))
        return Alternative(origin, mesh, batch, specs, estimate)


def _different(found: Sequence[Any], key: Callable[[Any], Any]) -> list[Any]:
    """The first of each key."""
    return list({key(f): f for f in reversed(found)}.values())[::-1]


def _rank(estimate: Estimate) -> tuple[float, float, float]:
    excess = 0 if estimate.fits else estimate.peak_bytes - estimate.memory_bytes
    return excess, estimate.seconds, estimate.peak_bytes


def _roles(
    leaves: Mapping[nn.Parameter, Leaf], runs: list[Run], fixed: Mapping[Pattern, PartitionSpec]
) -> list[Role]:
    """Parameters in the same place of equal layers share a role."""
    found: dict[str, list[Leaf]] = {}
    run_of: dict[str, Run | None] = {}
    for leaf in leaves.values():
        name, run = _representative(leaf.names[0], runs)
        found.setdefault(name, []).append(leaf)
        run_of[name] = run
    roles = []
    for name, alike in found.items():
        specs = [matching_spec(fixed, leaf.names) or leaf.mark for leaf in alike]
        if any(spec != specs[0] for spec in specs):
            # Rules that tell equal layers apart: each layer's parameter is a role of its own.
            for leaf, spec in zip(alike, specs, strict=True):
                roles.append(_role(leaf.names[0], [leaf], None, spec))
        else:
            roles.append(_role(name, alike, run_of[name], specs[0]))
    return roles


def _role(name: str, alike: list[Leaf], run: Run | None, spec: PartitionSpec | None) -> Role:
    leaf = alike[0]
    if spec is not None and len(spec) != len(leaf.shape):
        raise ValueError(
            f"auto_shard: parameter {name!r}: spec {tuple(spec)} has {len(spec)} entries but the "
            f"parameter has {len(leaf.shape)} dimensions"
        )
    return Role(name, leaf.shape, leaf.bytes, tuple(a.names[0] for a in alike), run, spec)


def _representative(name: str, runs: list[Run]) -> tuple[str, Run | None]:
    """The name of the same parameter in the first layer of its run."""
    for run in runs:
        if not name.startswith(run.path):
            continue
        index, _, rest = name[len(run.path) :].partition(".")
        keys = list(run.container._modules)
        if index in keys and run.first <= keys.index(index) < run.first + run.length:
            return f"{run.path}{keys[run.first]}.{rest}", run
    return name, None
