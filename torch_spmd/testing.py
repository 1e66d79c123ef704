# SPDX-License-Identifier: Apache-2.0
"""Checking rules by brute force."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd._compat import pytree

_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.logical_and,
    "or": torch.logical_or,
}

# [begin, end) of each dimension.
Box = list[tuple[int, int]]
# By factor that is sharded: the number of shards, and of indices in each but the last.
Cutting = Mapping[int, tuple[int, int]]

__all__ = ["check_rule"]


def check_rule(
    op: str,
    *args: Any,
    shards: Sequence[int] = (2, 3),
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> int:
    """Checks the rule of an op on one call. Every factor is sharded into `shards` parts, and every
    pair of factors into two parts each; the op runs on each part, and the results are put together
    and compared with those of the whole call.

    Args:
        op: the op's name, as given to `register_rule`; PyTorch's own ops have rules, too.
        args, kwargs: those of the op, with tensors on the CPU. Sizes that the shards do not divide
            evenly find more errors.
        rtol, atol: as for `torch.testing.assert_close`.

    Returns: the number of shardings that were compared.

    Errors: AssertionError that names the factor, the number of shards and the difference; TypeError
    for an argument of another kind; ValueError if the op does not exist or has no rule, or nothing
    in this call can be sharded; RuntimeError if the call does not fit the rule.

    Example (`register_rule` has one for a user's op):
        >>> import torch
        >>> from torch_spmd import testing
        >>> testing.check_rule("aten::mm", torch.randn(6, 4), torch.randn(4, 5)) > 0
        True
    """
    op = _arguments.text("check_rule", "op", op)
    shards = _arguments.integers("check_rule", "shards", shards, 2, 1024, most_items=64)
    rtol, atol = _tolerances("check_rule", rtol, atol)
    calls = list(calls_of(_function(op), *args, **kwargs))
    if not calls:
        raise ValueError(
            f"check_rule: '{op}' ran on the host at once, so there is nothing to shard: the "
            "shapes of its results must follow from its operands (torch.library.register_fake)"
        )
    if not any(call.op == op for call in calls):
        made = ", ".join(dict.fromkeys(call.op for call in calls))
        raise ValueError(f"check_rule: this call of '{op}' is traced as {made}; check that")
    checked = 0
    for call in calls:
        if call.op != op:
            continue
        if not call.has_rule:
            raise ValueError(f"check_rule: '{op}' has no rule; spmd.register_rule gives it one")
        checked += call.check(shards, rtol=rtol, atol=atol)
    if checked == 0:
        raise ValueError(
            f"check_rule: nothing in this call of '{op}' can be sharded: {calls[0].text}"
        )
    return checked


def _tolerances(caller: str, rtol: Any, atol: Any) -> tuple[float | None, float | None]:
    if (rtol is None) != (atol is None):
        raise ValueError(f"{caller}: give both of rtol and atol, or neither")
    tolerance = _arguments.tolerance
    return tolerance(caller, "rtol", rtol), tolerance(caller, "atol", atol)


def _function(op: str) -> Callable[..., Any]:
    namespace, _, name = op.partition("::")
    base, _, overload = name.partition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), base)
        function: Callable[..., Any] = getattr(packet, overload or "default")
    except (AttributeError, RuntimeError):
        raise ValueError(f"check_rule: there is no op '{op}'") from None
    return function


def calls_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Call]:
    """The calls as which a function of tensors on the CPU is traced, each with the values of its
    operands: those that are pending when the function returns and that one of its results needs.
    A call is run unsharded when its results are asked for, or operands that they are of.

    Errors: TypeError if it is not a function; those of the function.
    """
    if not callable(function):
        raise TypeError(
            f"calls_of: function must be a function of tensors; got {_arguments.shown(function)}"
        )
    _C.sync(True)
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to("spmd"), (args, kwargs))
    with torch.no_grad():
        results = function(*args, **kwargs)
    calls = _C.pending_calls()
    del results
    return _in_order(calls)


def _in_order(calls: _C.PendingCalls) -> Iterator[Call]:
    values = _Values(calls)
    for id in range(len(calls)):
        yield Call(calls, id, values)


class _Values:
    """The values of pending calls, computed when they are asked for."""

    def __init__(self, calls: _C.PendingCalls) -> None:
        self._calls, self._known = calls, dict(calls.inputs())
        self.described = [calls.call(id) for id in range(len(calls))]

    def operands(self, id: int) -> list[Tensor | None]:
        """Those of a call. Runs the earlier calls that they need and that have not run."""
        unknown, to_run = self._unknown_operands(id), []
        for earlier in range(id - 1, -1, -1):
            if unknown.isdisjoint(self.described[earlier][3]):
                continue
            to_run.append(earlier)
            unknown |= self._unknown_operands(earlier)
        for earlier in reversed(to_run):
            self.results(earlier)
        return [None if v is None else self._known[v] for v in self.described[id][2]]

    def results(self, id: int) -> list[Tensor]:
        results = self.described[id][3]
        if not self._known.keys() >= set(results):
            self._known.update(zip(results, self._calls.run(id, self.operands(id))))
        return [self._known[v] for v in results]

    def _unknown_operands(self, id: int) -> set[int | None]:
        return set(self.described[id][2]) - self._known.keys() - {None}


class Tile(NamedTuple):
    """A part of a result: its box, and which partial result of a reduction it is."""

    box: tuple[tuple[int, int], ...]
    data: Tensor
    term: tuple[Any, ...]
    kind: str


class Call:
    """One traced call, which can run as a whole and in parts."""

    def __init__(self, calls: _C.PendingCalls, id: int, values: _Values) -> None:
        if not isinstance(calls, _C.PendingCalls):
            raise TypeError(f"Call: made by calls_of only; got {_arguments.shown(calls)}")
        self._calls, self._id, self._values = calls, id, values
        self.op, self.text, _, self.results = values.described[id]
        rule = calls.factors(id)
        self.has_rule = rule is not None
        if rule is None:
            return
        self.factors: list[tuple[int, bool, str, int]] = rule["factors"]
        self.of_operand, self.of_result = rule["operands"], rule["results"]
        self.windows: list[tuple[int, int, int, float, list[tuple[int, int]]]] = rule["windows"]
        self.same: list[bool] = rule["same"]
        self.added: list[int] = rule["added"]
        self.each: dict[str, list[int]] = rule["each"]
        self.jointly: dict[str, list[int]] = rule["jointly"]

    @functools.cached_property
    def operands(self) -> list[Tensor | None]:
        """Their values; None for a tensor that is not given."""
        return self._values.operands(self._id)

    @functools.cached_property
    def whole(self) -> list[Tensor]:
        """The results."""
        return self._values.results(self._id)

    def check(
        self,
        shards: Sequence[int],
        rtol: float | None = None,
        atol: float | None = None,
        unwritten: Collection[int] = (),
    ) -> int:
        """Compares every sharding, except for results that the op leaves partly `unwritten`.
        Returns the number of shardings.

        Errors: AssertionError if one differs; ValueError for a call without a rule.
        """
        if not self.has_rule:
            raise ValueError(f"Call.check: '{self.op}' has no rule, so nothing can be sharded")
        shards = _arguments.integers("Call.check", "shards", shards, 2, 1024, most_items=64)
        rtol, atol = _tolerances("Call.check", rtol, atol)
        unwritten = _arguments.integers("Call.check", "unwritten", unwritten, 0, any_order=True)

        def compare(result: int, a: Tensor, b: Tensor) -> None:
            if result not in unwritten and not _equal(a, b):
                torch.testing.assert_close(
                    a,
                    b,
                    rtol=rtol,
                    atol=atol,
                    equal_nan=True,
                    msg=lambda m: f"result {result} differs. {m}",
                )

        checked = 0
        for what, run in self._cuts(shards):
            checked += 1
            try:
                for i, tiles in enumerate(run()):
                    compare(i, self._joined(i, tiles, compare), self.whole[i])
            except AssertionError as error:
                raise AssertionError(f"{self.text}: {what}: {error}") from None
        return checked

    def _cuts(self, shards: Sequence[int]) -> Iterator[tuple[str, Callable[[], list[list[Tile]]]]]:
        """A description of each sharding, and a function that computes the tiles of each result."""
        for factor in range(len(self.factors)):
            for n in shards:
                cutting = self._cutting({factor: n})
                if cutting is not None:
                    yield self._words(cutting), functools.partial(self._run, cutting)
        for pair in itertools.combinations(range(len(self.factors)), 2):
            cutting = self._cutting(dict.fromkeys(pair, 2))
            if cutting is not None and len(cutting) == len(pair):
                yield self._words(cutting), functools.partial(self._run, cutting)
        for kind in self.each:
            for linear in [[k] for k in self.each[kind]] + [self.jointly[kind]]:
                if self._has_terms(linear, kind):
                    what = f"operands {linear} as two partial results of a {kind}"
                    yield what, functools.partial(self._as_terms, linear, kind)

    def _words(self, cutting: Cutting) -> str:
        return " and ".join(
            f"factor {f} of size {self.factors[f][0]} in {n}" for f, (n, _) in cutting.items()
        )

    def _cutting(self, wanted: Mapping[int, int]) -> Cutting | None:
        """The given number of shards of each factor, and all indices of the factors that are major
        to it; None if that is not allowed."""
        cutting: dict[int, tuple[int, int]] = {}
        for factor in wanted:
            for major in self._majors(factor):
                if self.factors[major][1] or major in wanted:
                    return None
                cutting[major] = (self.factors[major][0], 1)
        minor = bool(cutting)
        for factor, n in wanted.items():
            size, whole, _, granularity = self.factors[factor]
            chunk = math.ceil(math.ceil(size / n) / granularity) * granularity
            if whole or chunk >= size or (minor and chunk * n != size):
                return None
            cutting[factor] = (n, chunk)
        for r in range(len(self.whole)):
            if len({self.factors[f][2] for f in cutting if self._makes_terms(r, f)}) > 1:
                return None  # a sum of maxima is not a maximum of sums
        return cutting

    def _majors(self, factor: int) -> set[int]:
        majors: set[int] = set()
        for dim in itertools.chain(*self.of_operand, *self.of_result):
            if factor in dim:
                for major in dim[: dim.index(factor)]:
                    majors |= {major} | self._majors(major)
        return majors

    def _run(self, cutting: Cutting) -> list[list[Tile]]:
        """The tiles of each result."""
        tiles: list[list[Tile]] = [[] for _ in self.whole]
        cut = [f in cutting for f in range(len(self.factors))]
        for coordinates in itertools.product(*(range(n) for n, _ in cutting.values())):
            at = dict(zip(cutting, coordinates))
            shards = {f: self._shard(f, cutting, at) for f in range(len(self.factors))}
            if any(begin == end for f, (begin, end) in shards.items() if cut[f]):
                continue  # nothing is called for an empty tile
            operands, boxes = self._operand_tiles(cutting, at, shards)
            into = [
                self._box(dims, cutting, shards, t) for dims, t in zip(self.of_result, self.whole)
            ]
            made = self._calls.run_tile(self._id, operands, cut, boxes, into)
            for r, (data, box) in enumerate(zip(made, into)):
                term = tuple((f, i) for f, i in at.items() if self._makes_terms(r, f))
                kinds = [self.factors[f][2] for f, _ in term]
                tiles[r].append(Tile(tuple(box), data, term, kinds[0] if kinds else "sum"))
        return tiles

    def _joined(
        self, r: int, tiles: list[Tile], compare: Callable[[int, Tensor, Tensor], None]
    ) -> Tensor:
        """Puts result r together from its tiles. Tiles of one box and one partial result are
        copies, which are compared."""
        terms: dict[tuple[Any, Any], Tile] = {}
        for tile in tiles:
            other = terms.setdefault((tile.box, tile.term), tile)
            if other is not tile:
                compare(r, tile.data, other.data)
        places: dict[Any, Tensor] = {}
        for tile in terms.values():
            there = places.get(tile.box)
            places[tile.box] = tile.data if there is None else _COMBINE[tile.kind](there, tile.data)
        whole = torch.empty_like(self.whole[r], memory_format=torch.contiguous_format)
        assert sum(data.numel() for data in places.values()) == whole.numel(), (
            "the tiles do not cover the result"
        )
        for box, data in places.items():
            whole[tuple(slice(begin, end) for begin, end in box)] = data
        return whole

    def _shard(self, f: int, cutting: Cutting, at: Mapping[int, int]) -> tuple[int, int]:
        size = self.factors[f][0]
        if f not in cutting:
            return 0, size
        n, chunk = cutting[f]
        begin = min(at[f] * chunk, size)
        return begin, size if at[f] == n - 1 else min(begin + chunk, size)

    def _operand_tiles(
        self, cutting: Cutting, at: Mapping[int, int], shards: Mapping[int, tuple[int, int]]
    ) -> tuple[list[Tensor | None], list[Box | None]]:
        tiles: list[Tensor | None] = []
        boxes: list[Box | None] = []
        first = all(
            at[f] == 0 or not self._makes_terms(r, f)
            for f in cutting
            for r in range(len(self.whole))
        )
        for k, t in enumerate(self.operands):
            if t is None:
                tiles.append(None)
                boxes.append(None)
                continue
            box, fill = self._box(self.of_operand[k], cutting, shards, t), 0.0
            for w, (operand, dim, factor, outside, order) in enumerate(self.windows):
                if operand == k and factor in cutting:
                    t = _reordered(t, dim, order, outside)
                    box[dim] = self._calls.window(self._id, w, *shards[factor])
                    fill = outside
            tile = _crop(t, box, fill)
            tiles.append(tile if first or k not in self.added else torch.zeros_like(tile))
            boxes.append(box)
        return tiles, boxes

    def _box(
        self,
        dims: list[list[int]],
        cutting: Cutting,
        shards: Mapping[int, tuple[int, int]],
        t: Tensor,
    ) -> Box:
        box = []
        for factors, size in zip(dims, t.shape):
            begin, end = 0, 1
            for f in factors:
                n = self.factors[f][0]
                begin, end = begin * n + shards[f][0], (end - 1) * n + shards[f][1]
            box.append((begin, end) if any(f in cutting for f in factors) else (0, size))
        return box

    def _makes_terms(self, r: int, factor: int) -> bool:
        return (
            not self.same[r]
            and not _has(self.of_result[r], factor)
            and any(_has(dims, factor) for dims in self.of_operand)
        )

    def _has_terms(self, operands: Sequence[int], kind: str) -> bool:
        there = [t for k in operands if (t := self.operands[k]) is not None]
        # Floats of eight bits are not added. Complex numbers have no order, and only sums with an
        # infinity give an infinity.
        return (
            bool(there)
            and not any(t.dtype == torch.bool for t in there)
            and not any(t.is_floating_point() and t.itemsize == 1 for t in there)
            and (kind == "sum" or not any(t.is_complex() for t in there))
            and all(t is None or bool(t.isfinite().all()) for t in self.operands)
        )

    def _as_terms(self, linear: Sequence[int], kind: str) -> list[list[Tile]]:
        """The results of two calls that `kind` combines to those of the whole call."""
        generator = torch.Generator().manual_seed(0)
        first, second = list(self.operands), list(self.operands)
        for k in linear:
            t = self.operands[k]
            if t is not None:
                first[k], second[k] = _two_terms(t, kind, generator)
        for k in self.added:
            t = second[k]
            if k not in linear and t is not None:
                second[k] = torch.zeros_like(t)
        return [
            [
                Tile(tuple((0, n) for n in data.shape), data, (number,), kind)
                for number, data in enumerate(terms)
            ]
            for terms in zip(self._calls.run(self._id, first), self._calls.run(self._id, second))
        ]


def _two_terms(t: Tensor, kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if kind == "sum":
        # Minus one to two times each element, so that both partial sums and their sum are exact.
        times = torch.randint(-1, 3, t.shape, generator=generator)
        return times.to(t.dtype) * t, (1 - times).to(t.dtype) * t
    # One of the partial results is the element, the other one does not affect it.
    held = torch.randint(0, 2, t.shape, generator=generator).bool()
    less = torch.randint(0, 4, t.shape, generator=generator).to(t.dtype)
    other = t - less if kind == "max" else t + less
    return torch.where(held, t, other), torch.where(held, other, t)


def _has(dims: list[list[int]], factor: int) -> bool:
    return any(factor in dim for dim in dims)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether no element differs, which is found sooner than whether they are close."""
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype == torch.complex32:
        return False  # or unknown: PyTorch does not compare complex numbers of 32 bits
    return torch.equal(a, b)


def _reordered(t: Tensor, dim: int, order: list[tuple[int, int]], fill: float) -> Tensor:
    """The tensor with its indices along a dimension in another order; itself if there is none."""
    if not order:
        return t
    whole: Box = [(0, n) for n in t.shape]
    return torch.cat(
        [_crop(t, [*whole[:dim], part, *whole[dim + 1 :]], fill) for part in order], dim
    )


def _crop(t: Tensor, box: Box, fill: float) -> Tensor:
    """The elements in a box, and `fill` where the box reaches outside the tensor."""
    if all(0 <= begin <= end <= n for (begin, end), n in zip(box, t.shape)):
        part = t[tuple(slice(begin, end) for begin, end in box)]
        return part.clone(memory_format=torch.contiguous_format)
    tile = torch.full(
        [max(end - begin, 0) for begin, end in box], fill, dtype=t.dtype, device="cpu"
    )
    inside = [(max(begin, 0), min(end, n)) for (begin, end), n in zip(box, t.shape)]
    if all(begin < end for begin, end in inside):
        to = tuple(slice(b - begin, e - begin) for (b, e), (begin, _) in zip(inside, box))
        tile[to] = t[tuple(slice(b, e) for b, e in inside)]
    return tile
