# SPDX-License-Identifier: Apache-2.0
"""Checking rules by brute force."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _C

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
}

# First index and size, of each dimension.
Box = list[tuple[int, int]]


def check_rule(
    op: str,
    *args: Any,
    shards: Sequence[int] = (2, 3),
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> int:
    """Checks a rule that `register_rule` gave to an op, on one call: every factor cut into `shards`
    parts, the op called on each part, what comes out put together and compared with the whole.

        spmd.testing.check_rule("mylib::scale_rows", torch.randn(6, 4), torch.randn(6))

    Args:
        op: the op's name, as given to `register_rule`.
        args, kwargs: of the op; tensors on the CPU. Sizes that the shards do not divide find more.
        rtol, atol: of `torch.testing.assert_close`.

    Returns: how many cuts were compared.

    Errors: AssertionError that names the factor, the number of shards and the difference;
    ValueError when the op has no rule, or the call does not fit it.
    """
    call = _Call(op, args, kwargs)
    checked = 0
    for what, got in call.cuts(shards):
        checked += 1
        for i, (a, b) in enumerate(zip(got, call.whole)):
            try:
                torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"{op}: {what}: result {i} differs. {error}") from None
    return checked


class _Call:
    """One call, whole and in parts."""

    def __init__(self, op: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.name = op
        namespace, name = op.split("::")
        base, _, overload = name.partition(".")
        packet = getattr(getattr(torch.ops, namespace), base)
        self.op = getattr(packet, overload or "default")
        arguments = self.op._schema.arguments
        self.values = {a.name: v for a, v in zip(arguments, args)} | kwargs
        self.slots = [a.name for a in arguments if "Tensor" in str(a.type)]
        self.operands: list[Tensor | None] = [self.values.get(name) for name in self.slots]
        self.whole = self.run(self.operands, {})
        rule = _C.call_factors(op, _dims(self.operands), _dims(self.whole))
        self.factors: list[tuple[int, bool, str]] = rule["factors"]
        self.of_operand, self.of_result = rule["operands"], rule["results"]
        self.same: list[bool] = rule["same"]
        self.added, self.each, self.jointly = rule["added"], rule["each"], rule["jointly"]

    def run(self, operands: Sequence[Tensor | None], attributes: dict[str, Any]) -> list[Tensor]:
        values = self.values | dict(zip(self.slots, operands)) | attributes
        results = self.op(**{k: v for k, v in values.items() if v is not None})
        return list(results) if isinstance(results, (tuple, list)) else [results]

    def cuts(self, shards: Sequence[int]) -> Iterator[tuple[str, list[Tensor]]]:
        """What is cut, in words, and the results put together."""
        for factor, (size, whole, kind) in enumerate(self.factors):
            for n in () if whole else shards:
                if self._may_cut(factor):
                    yield f"factor {factor} of size {size} in {n}", self._cut(factor, n, kind)
        for k in self.each:
            if self.operands[k] is not None:
                yield f"operand {k} as two terms", self._as_terms([k])
        if any(self.operands[k] is not None for k in self.jointly):
            yield f"operands {self.jointly} as two terms", self._as_terms(self.jointly)

    def _may_cut(self, factor: int) -> bool:
        # Only the major factor of a compound dimension gives an interval per shard.
        dims = [dim for tensor in (*self.of_operand, *self.of_result) for dim in tensor]
        return all(dim[0] == factor for dim in dims if factor in dim)

    def _cut(self, factor: int, n: int, kind: str) -> list[Tensor]:
        size = self.factors[factor][0]
        chunk = math.ceil(size / n)
        parts: list[list[Tensor]] = []
        for i in range(n):
            begin, end = min(i * chunk, size), min((i + 1) * chunk, size)
            if begin == end:
                continue  # an empty tile: nothing is called
            boxes = [
                self._box(dims, factor, begin, end, t)
                for dims, t in zip(self.of_operand, self.operands)
            ]
            into = [
                self._box(dims, factor, begin, end, t)
                for dims, t in zip(self.of_result, self.whole)
            ]
            tiles = [_tile(t, box) for t, box in zip(self.operands, boxes)]
            if i > 0 and not all(_has(dims, factor) for dims in self.of_result):
                for k in self.added:
                    tile = tiles[k]
                    tiles[k] = None if tile is None else torch.zeros_like(tile)
            attributes = _C.local_attributes(
                self.name, boxes, into, _dims(self.operands), _dims(self.whole)
            )
            parts.append(self.run(tiles, attributes))
        return [
            self._join([part[r] for part in parts], r, factor, kind) for r in range(len(self.whole))
        ]

    def _box(
        self, dims: list[list[int]], factor: int, begin: int, end: int, t: Tensor | None
    ) -> Box:
        box = []
        for d, factors in enumerate(dims):
            assert t is not None
            if factor in factors:
                inner = math.prod(self.factors[f][0] for f in factors[1:])
                box.append((begin * inner, (end - begin) * inner))
            else:
                box.append((0, t.shape[d]))
        return box

    def _join(self, parts: list[Tensor], result: int, factor: int, kind: str) -> Tensor:
        for d, factors in enumerate(self.of_result[result]):
            if factor in factors:
                return torch.cat(parts, d)
        if self.same[result]:
            whole = self.whole[result]
            return next((part for part in parts if not torch.equal(part, whole)), parts[0])
        total = parts[0]
        for part in parts[1:]:
            total = _COMBINE[kind](total, part)
        return total

    def _as_terms(self, linear: Sequence[int]) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        first, second = list(self.operands), list(self.operands)
        for k in linear:
            t = self.operands[k]
            if t is not None:
                part = torch.rand(t.shape, generator=generator).to(t.dtype) * t
                first[k], second[k] = part, t - part
        for k in self.added:
            t = second[k]
            if k not in linear and t is not None:
                second[k] = torch.zeros_like(t)
        return [a + b for a, b in zip(self.run(first, {}), self.run(second, {}))]


def _has(dims: list[list[int]], factor: int) -> bool:
    return any(factor in dim for dim in dims)


def _dims(tensors: Sequence[Tensor | None]) -> list[list[int] | None]:
    return [None if t is None else list(t.shape) for t in tensors]


def _tile(t: Tensor | None, box: Box) -> Tensor | None:
    if t is None:
        return None
    for d, (begin, size) in enumerate(box):
        t = t.narrow(d, begin, size)
    return t.contiguous()
