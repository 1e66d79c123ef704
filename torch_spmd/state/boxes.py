# SPDX-License-Identifier: Apache-2.0
"""Which bytes of a file hold which part of a tensor. Nothing is read here.

A box is one (begin, end) per dimension. The bytes of a box lie in a file one after another, last
dimension first, as in a contiguous tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

Box = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> tuple[int, ...]:
    return tuple(max(0, end - begin) for begin, end in box)


def elements(box: Box) -> int:
    return math.prod(sizes(box))


def intersection(a: Box, b: Box) -> Box:
    return tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b))


def bounding(boxes: Sequence[Box]) -> Box:
    return tuple(
        (min(begin for begin, _ in dim), max(end for _, end in dim)) for dim in zip(*boxes)
    )


def slices(box: Box, within: Box) -> tuple[slice, ...]:
    """The slices that take `box` out of a tensor that is the part `within`."""
    return tuple(slice(begin - low, end - low) for (begin, end), (low, _) in zip(box, within))


def regions(boxes: Sequence[Box]) -> list[Box]:
    """Boxes to be read one by one that together are the given ones: one for all if they fill it,
    as the parts of neighbouring devices do, else each for itself.

    >>> regions([((0, 2), (0, 4)), ((2, 4), (0, 4))])
    [((0, 4), (0, 4))]
    >>> regions([((0, 2), (0, 4)), ((6, 8), (0, 4))])
    [((0, 2), (0, 4)), ((6, 8), (0, 4))]
    """
    distinct = [box for box in dict.fromkeys(boxes) if elements(box)]
    if not distinct:
        return []
    hull = bounding(distinct)
    return [hull] if elements(hull) == sum(map(elements, distinct)) else distinct


def slabs(box: Box, itemsize: int, most: int) -> Iterator[Box]:
    """The box in parts of at most `most` bytes (or of one element), in the order of its bytes.

    >>> list(slabs(((0, 3), (0, 4)), 1, 8))
    [((0, 2), (0, 4)), ((2, 3), (0, 4))]
    >>> list(slabs(((0, 2), (0, 4)), 1, 3))
    [((0, 1), (0, 3)), ((0, 1), (3, 4)), ((1, 2), (0, 3)), ((1, 2), (3, 4))]
    """
    if not box or elements(box) * itemsize <= most:
        yield box
        return
    (begin, end), *rest = box
    others = tuple(rest)
    row = elements(others) * itemsize
    if row <= most or not others:
        step = max(1, most // row)
        for at in range(begin, end, step):
            yield ((at, min(at + step, end)), *others)
        return
    for at in range(begin, end):
        for part in slabs(others, itemsize, most):
            yield ((at, at + 1), *part)


def runs(part: Box, stored: Box, itemsize: int) -> Iterator[tuple[int, int]]:
    """(begin, length) in bytes, from where `stored` begins, of the contiguous runs that make up
    `part`, in its order. Requires: `stored` contains `part`, which is not empty.

    >>> list(runs(((0, 2), (1, 3)), ((0, 2), (0, 4)), 1))
    [(1, 2), (5, 2)]
    >>> list(runs(((1, 2), (0, 4)), ((0, 2), (0, 4)), 2))
    [(8, 8)]
    """
    length, dim = itemsize, len(part)
    while dim > 0:  # dimensions that are taken whole continue the run
        dim -= 1
        begin, end = part[dim]
        low, high = stored[dim]
        length *= end - begin
        if (begin, end) != (low, high):
            break
    strides = [itemsize] * len(part)
    for d in reversed(range(len(part) - 1)):
        strides[d] = strides[d + 1] * (stored[d + 1][1] - stored[d + 1][0])
    first = sum((part[d][0] - stored[d][0]) * strides[d] for d in range(len(part)))
    for index in itertools.product(*(range(part[d][1] - part[d][0]) for d in range(dim))):
        yield first + sum(i * strides[d] for d, i in enumerate(index)), length
