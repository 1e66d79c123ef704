# SPDX-License-Identifier: Apache-2.0
"""The cheapest choice for each layer of a chain, within a number of bytes.

Layers are eliminated one after the other. What is kept of the layers so far is, for each option of
the last one, the frontier of (bytes, seconds): every choice of which no other takes both fewer
bytes and less time. The result is exact: among all choices that fit, none takes less time.

With two layers whose options take (1 s, 9 bytes) or (2 s, 4 bytes), 0.5 s between layers that
choose differently, and room for 13 bytes, one layer of each kind is best:

    >>> from torch_spmd.planning.chain import Option, cheapest
    >>> layer = [Option(1.0, 9), Option(2.0, 4)]
    >>> between = [[0.0, 0.5], [0.5, 0.0]]
    >>> cheapest([layer, layer], [between], 13)
    ([1, 0], 3.5)
    >>> cheapest([layer, layer], [between], 8)
    ([1, 1], 4.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Between = Sequence[Sequence[float]]  # seconds, by option of one layer and of the next


class Option(NamedTuple):
    """What a layer takes if it is sharded in one way."""

    seconds: float
    bytes: int


class _Partial(NamedTuple):
    """A choice for the layers so far; `choice` is the last one's, `before` those of the others."""

    bytes: int
    seconds: float
    choice: int
    before: Any


def cheapest(
    layers: Sequence[Sequence[Option]], between: Sequence[Between], most_bytes: int | None
) -> tuple[list[int], float] | None:
    """The option of each layer, and the seconds of all; None where no choice fits."""
    if not layers:
        return [], 0.0
    room = _room_before(layers, most_bytes)
    frontiers = [
        _frontier([_Partial(option.bytes, option.seconds, choice, None)], room[0])
        for choice, option in enumerate(layers[0])
    ]
    for position in range(1, len(layers)):
        moves = between[position - 1]
        frontiers = [
            _frontier(
                [
                    _Partial(
                        partial.bytes + option.bytes,
                        partial.seconds + moves[earlier][choice] + option.seconds,
                        choice,
                        partial,
                    )
                    for earlier, frontier in enumerate(frontiers)
                    for partial in frontier
                ],
                room[position],
            )
            for choice, option in enumerate(layers[position])
        ]
    found = [partial for frontier in frontiers for partial in frontier]
    if not found:
        return None
    best = min(found, key=lambda partial: (partial.seconds, partial.bytes))
    choices, at = [], best
    while at is not None:
        choices.append(at.choice)
        at = at.before
    return choices[::-1], best.seconds


def _room_before(layers: Sequence[Sequence[Option]], most: int | None) -> list[int | None]:
    """By layer: the bytes that it and those before may take, so that the others still fit."""
    if most is None:
        return [None] * len(layers)
    room = [most]
    for layer in reversed(layers[1:]):
        room.append(room[-1] - min(option.bytes for option in layer))
    return [*reversed(room)]


def _frontier(partials: list[_Partial], room: int | None) -> list[_Partial]:
    """Those that fit and that no other one beats in both bytes and seconds."""
    kept: list[_Partial] = []
    for partial in sorted(partials, key=lambda p: (p.bytes, p.seconds)):
        if room is not None and partial.bytes > room:
            break
        if not kept or partial.seconds < kept[-1].seconds:
            kept.append(partial)
    return kept
