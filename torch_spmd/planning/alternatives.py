# SPDX-License-Identifier: Apache-2.0
"""Ways to shard a model on a machine: those that the search finds, compiled whole and ranked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from torch_spmd import _C, _compat
from torch_spmd.planning.mixture import mixtures
from torch_spmd.planning.search import STARTS, Axes, Candidate, Price, Priced, Role, Space
from torch_spmd.planning.traced import Leaf, Recorded, Run, record, runs_of, shortened
from torch_spmd.planning.training_step import TrainingStep
from torch_spmd.sharding.modules import Pattern, matching_spec
from torch_spmd.sharding.spec import PartitionSpec, of_rank

LEAST_WHOLE = 3  # the first ones of the ranking, which are compiled whole
WHOLE_NODES = 40_000  # of graphs: more are compiled whole until so many were
MUCH_SLOWER = 2.0  # times as long as the fastest, with one layer of each run
Found = tuple[Space, Priced]


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
    """A way to shard the model: the axes of the mesh, the axes over which dimension 0 of the batch
    is sharded, specs by parameter, and what a step takes. `is_whole`: the step was compiled whole;
    else the estimate is extrapolated from steps with one and with two of equal layers."""

    origin: str
    mesh: dict[str, int]
    batch: Axes
    specs: dict[str, PartitionSpec]
    estimate: Estimate
    is_whole: bool = True


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
        first = self.whole.programs[0]
        self.batch = [tuple(first.shapes[i].tensor.shape) for i in first.of_batch]

    def alternatives(self, meshes: list[_C.Mesh]) -> list[Alternative]:
        """The best one first; it and the runner-up are compiled whole."""
        spaces = [self._space(mesh) for mesh in meshes]
        marked = [m for space in spaces[:1] for m in space.one[1][0].meshes()[1:]]
        if marked:  # marks in the model's code
            spaces = [self._space(mesh) for mesh in marked[:1]]
        patterns = self._patterns(spaces)
        best = [
            (space, space.descend(start))
            for space, start in _different(patterns, lambda f: (id(f[0]), f[1].candidate.batch))[
                :STARTS
            ]
        ]
        by_origin = _different(patterns, lambda f: f[1].candidate.origin)
        chosen = _different(
            best + by_origin, lambda f: (id(f[0]), f[1].candidate.specs, f[1].candidate.batch)
        )
        found = self._judged(chosen)
        found += self._mixed(*min(best, key=_rank_of), found)
        return sorted(found, key=lambda a: _rank(a.estimate))

    def _patterns(self, spaces: list[Space]) -> list[Found]:
        """What people write, priced, the best first. Left out is what is much slower than the best
        with one layer of each run, if something else fits; but there is one of each origin."""
        tried = [
            (space.price_of_one(candidate).seconds, space, candidate)
            for space in spaces
            for batch in self._batches(space, len(spaces) > 1)
            for candidate in space.patterns(batch)
            if len(spaces) == 1 or space.uses_axes_apart(candidate)
        ]
        tried.sort(key=lambda found: found[0])
        limit = MUCH_SLOWER * tried[0][0]
        priced: list[Found] = []
        fits = False
        origins: set[str] = set()
        for seconds, space, candidate in tried:
            if fits and seconds > limit and candidate.origin in origins:
                continue
            origins.add(candidate.origin)
            found = Priced(candidate, space.price(candidate))
            fits = fits or space.rank(found.price)[0] == 0
            priced.append((space, found))
        return sorted(priced, key=_rank_of)

    def _judged(self, chosen: list[Found]) -> list[Alternative]:
        """The first ones of the ranking are compiled whole, and the fastest whose inputs fit, which
        may fit whole. Their prices may bring another candidate to their places. Of a small model
        all are."""
        found = [
            (space, priced.candidate, self._alternative(space, priced.candidate, priced.price))
            for space, priced in chosen
        ]
        nodes = 0
        while True:
            found.sort(key=lambda f: _rank(f[2].estimate))
            judged = list(range(min(LEAST_WHOLE, len(found))))
            may_fit = [i for i, f in enumerate(found) if _inputs_fit(f[2].estimate)]
            if may_fit:
                judged.append(min(may_fit, key=lambda i: found[i][2].estimate.seconds))
            if nodes < WHOLE_NODES:
                judged += range(len(found))
            at = next((i for i in judged if not found[i][2].is_whole), None)
            if at is None:
                return [alternative for _, _, alternative in found]
            space, candidate, _ = found[at]
            found[at] = space, candidate, self._compiled(
                space, space.by_name(candidate), candidate.batch, candidate.origin
            )  # fmt: skip
            nodes += sum(graph.num_nodes() for graph in space.whole[1])

    def _mixed(self, space: Space, best: Priced, found: list[Alternative]) -> list[Alternative]:
        """Choices by layer, where the fastest does not fit."""
        if min(found, key=lambda a: a.estimate.seconds).estimate.fits:
            return []
        batch = best.candidate.batch
        return [
            self._compiled(space, specs, batch, "layers that differ")
            for specs in mixtures(space, best, lambda s: space.price_of(*space.whole, s, batch))
        ]

    def _space(self, mesh: _C.Mesh) -> Space:
        return Space(
            mesh,
            self.machine["name"],
            self.roles,
            self.whole,
            self.one,
            self.two,
            self.machine["memory_bytes"],
            [len(shape) for shape in self.batch],
        )

    def _batches(self, space: Space, among_others: bool) -> list[Axes]:
        """Sets of axes that divide dimension 0 of every tensor of the batch. `among_others`: meshes
        of the same axes in the other order are tried, too, and have what is left out: the batch
        over the second axis, and over none."""
        found: list[Axes] = []
        for count in range(len(space.sizes), -1, -1):
            for axes in itertools.combinations(space.sizes, count):
                shards = 1
                for axis in axes:
                    shards *= space.sizes[axis]
                if all(not shape or shape[0] % shards == 0 for shape in self.batch):
                    found.append(axes)
        first = tuple(space.sizes)[:1]
        if among_others and len(space.sizes) > 1 and first in found:
            return [axes for axes in found if axes[:1] == first]
        return found

    def _compiled(
        self, space: Space, specs: dict[str, PartitionSpec], batch: Axes, origin: str
    ) -> Alternative:
        price = space.price_of(*space.whole, specs, batch)
        return self._made(space, specs, batch, origin, price, is_whole=True)

    def _alternative(self, space: Space, candidate: Candidate, price: Price) -> Alternative:
        """By few layers; where there are no runs, they are all."""
        is_whole = self.one is self.whole
        specs = space.by_name(candidate)
        return self._made(space, specs, candidate.batch, candidate.origin, price, is_whole)

    def _made(
        self,
        space: Space,
        specs: dict[str, PartitionSpec],
        batch: Axes,
        origin: str,
        price: Price,
        is_whole: bool,
    ) -> Alternative:
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
        return Alternative(origin, mesh, batch, specs, estimate, is_whole)


def _different(found: Sequence[Any], key: Callable[[Any], Any]) -> list[Any]:
    """The first of each key, in the order of `found`."""
    first: dict[Any, Any] = {}
    for f in found:
        first.setdefault(key(f), f)
    return list(first.values())


def _rank_of(found: Found) -> tuple[float, float, float]:
    space, priced = found
    return space.rank(priced.price)


def _inputs_fit(estimate: Estimate) -> bool:
    return estimate.memory_bytes == 0 or estimate.input_bytes <= estimate.memory_bytes


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
    if spec is not None and len(spec) > len(leaf.shape):
        raise ValueError(
            f"auto_shard: parameter {name!r}: spec {tuple(spec)} has {len(spec)} entries but the "
            f"parameter has {len(leaf.shape)} dimensions"
        )
    if spec is not None:
        spec = of_rank(spec, len(leaf.shape))
    return Role(name, leaf.shape, leaf.bytes, tuple(a.names[0] for a in alike), run, spec)


def _representative(name: str, runs: list[Run]) -> tuple[str, Run | None]:
    """The name of the same parameter in the first layer of its run."""
    for run in runs:
        if not name.startswith(run.path):
            continue
        index, _, rest = name[len(run.path) :].partition(".")
        keys = list(_compat.children(run.container))
        if index in keys and run.first <= keys.index(index) < run.first + run.length:
            return f"{run.path}{keys[run.first]}.{rest}", run
    return name, None
