# SPDX-License-Identifier: Apache-2.0
"""Which axes of a mesh lie along which axes of a torus of devices.

Source: `mesh_utils` of JAX, whose order torch_xla uses. Later axes of the mesh communicate more and
choose first. An axis takes as many whole axes of the torus as possible. If some axis cannot have
whole ones, axes of the torus are split.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

MOST_AXES = 3  # of a torus that one axis of the mesh takes as a whole


def assigned(torus: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The devices of a torus as an array of the mesh's shape."""
    whole = _whole_axes(torus.shape, shape)
    if whole is not None:
        return torus.transpose([axis for axes in whole for axis in axes]).reshape(tuple(shape))
    return _split(torus, shape)


def _whole_axes(sizes: Sequence[int], shape: Sequence[int]) -> list[tuple[int, ...]] | None:
    """For each axis of the mesh those of the torus that it takes; None if some must be split."""
    left = dict(enumerate(sizes))
    taken: list[tuple[int, ...]] = [()] * len(shape)
    for axis in reversed(range(len(shape))):
        candidates = (
            chosen
            for count in range(MOST_AXES, 0, -1)
            for chosen in itertools.combinations(left, count)
            if math.prod(left[a] for a in chosen) == shape[axis]
        )
        found = next(candidates, None)
        if found is None and shape[axis] > 1:
            return None
        taken[axis] = found or ()
        for a in taken[axis]:
            del left[a]
    if len({a for axes in taken for a in axes}) < len(sizes):
        # Axes of size 1 that nothing took.
        taken[0] = (*taken[0], *left)
    return taken


def _split(torus: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    sizes = torus.shape
    # parts[p, l]: how many devices along axis p of the torus axis l of the mesh takes.
    parts = np.ones((len(sizes), len(shape)), dtype=int)
    for axis in reversed(range(len(shape))):
        used = parts.prod(axis=1)
        parts[:, axis] = max(
            _factors(shape[axis], [size // u for size, u in zip(sizes, used)]),
            key=lambda way: _worth(way, sizes, used),
        )
    # Axes that communicate more are minor within an axis of the torus.
    split = torus.reshape(parts.reshape(-1))
    order = [p * len(shape) + m for m in range(len(shape)) for p in range(len(sizes))]
    return split.transpose(order).reshape(tuple(shape))


def _factors(size: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write a size as a product of divisors of the given numbers, in order."""
    if not room:
        if size == 1:
            yield ()
        return
    for first in range(1, room[0] + 1):
        if room[0] % first == 0 and size % first == 0:
            for others in _factors(size // first, room[1:]):
                yield (first, *others)


def _worth(way: tuple[int, ...], sizes: Sequence[int], used: Any) -> tuple[Any, ...]:
    """What is preferred, most important first: devices along whole axes of the torus, more of these
    axes, axes that an axis which communicates more has not touched."""
    whole = [part for part, size in zip(way, sizes) if part == size]
    touched = [part for part, u in zip(way, used) if u > 1]
    return math.prod(whole), sum(part > 1 for part in whole), math.prod(touched), way
