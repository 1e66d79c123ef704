# SPDX-License-Identifier: Apache-2.0
"""Equal layers that are sharded in different ways, since the fastest way does not fit for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_spmd.planning.chain import Option, cheapest
from torch_spmd.planning.search import Candidate, Price, Priced, Space
from torch_spmd.planning.traced import Run
from torch_spmd.sharding.spec import PartitionSpec

MOST_OPTIONS = 4  # of a layer
MOST_TRIES = 4  # mixtures that are compiled whole until one fits

Specs = dict[str, PartitionSpec]


def mixtures(space: Space, best: Priced, compiled: Callable[[Specs], Price]) -> Iterator[Specs]:
    """Specs by parameter, by run: the fastest choice for its layers that fits, `best` elsewhere.

    `compiled` prices the whole step. A choice whose whole step does not fit is searched again with
    as much less room as it was too large.
    """
    for run in space.two:
        options = _options(space, run, best)
        if len(options) < 2:
            continue
        layer, between = _table(space, run, options, best)
        room = space.memory_bytes
        for _ in range(MOST_TRIES):
            found = cheapest([layer] * run.length, [between] * (run.length - 1), room)
            if found is None:
                break
            choices, _ = found
            specs = _by_layer(space, run, best, {n: options[c] for n, c in enumerate(choices)})
            excess = compiled(specs).peak_bytes - space.memory_bytes
            if excess <= 0:
                yield specs
                break
            room = min(room - int(excess), sum(layer[c].bytes for c in choices) - 1)


def _options(space: Space, run: Run, best: Priced) -> list[Candidate]:
    """`best` with other specs for the layers of `run`: the frontier of seconds and bytes of all
    that were priced."""
    tried: dict[tuple[PartitionSpec, ...], Priced] = {}
    of_run = [i for i, role in enumerate(space.roles) if role.run == run]
    for candidate, _ in space.history:
        if candidate.batch != best.candidate.batch:
            continue
        specs = {i: candidate.specs[i] for i in of_run}
        key = tuple(specs.values())
        if key not in tried:
            changed = best.candidate.with_specs(specs)
            tried[key] = Priced(changed, space.price(changed))
    frontier: list[Priced] = []
    for priced in sorted(tried.values(), key=lambda p: (p.price.peak_bytes, p.price.seconds)):
        if not frontier or priced.price.seconds < frontier[-1].price.seconds:
            frontier.append(priced)
    step = max(1, -(-len(frontier) // MOST_OPTIONS))
    kept = frontier[::step]
    if frontier and kept[-1] is not frontier[-1]:
        kept[-1] = frontier[-1]
    return [priced.candidate for priced in kept]


def _table(
    space: Space, run: Run, options: list[Candidate], best: Priced
) -> tuple[list[Option], list[list[float]]]:
    """By option: the layer's part of a step in which all layers of the run have it, so that the sum
    is right where they do. And what two neighbours that differ take more than their parts."""
    recorded, graph = space.two[run]
    batch = best.candidate.batch

    def seconds(first: Candidate, second: Candidate) -> float:
        specs = _by_layer(space, run, best, {0: first, 1: second})
        return space.price_of(recorded, graph, specs, batch).seconds

    totals = [space.price(option) for option in options]
    layer = [
        Option(total.seconds / run.length, -(-int(total.peak_bytes) // run.length))
        for total in totals
    ]
    alike = [seconds(option, option) for option in options]
    between = [
        [
            max(0.0, seconds(a, b) - (alike[i] + alike[j]) / 2) if i != j else 0.0
            for j, b in enumerate(options)
        ]
        for i, a in enumerate(options)
    ]
    return layer, between


def _by_layer(space: Space, run: Run, best: Priced, choice: dict[int, Candidate]) -> Specs:
    """By parameter: `best`, but the layers of `run` with these numbers as these candidates."""
    specs = space.by_name(best.candidate)
    for number, candidate in choice.items():
        for role, spec in zip(space.roles, candidate.specs, strict=True):
            if role.run == run:
                specs[role.names[number]] = spec
    return specs
