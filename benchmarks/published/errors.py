# SPDX-License-Identifier: Apache-2.0
"""The error of modelled step times against published ones, and the constants that fit best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean

from benchmarks.published.planned import Planned
from benchmarks.published.rows import Row

Pairs = Mapping[str, tuple[Row, Planned]]  # by the row's name
_TRIED = [round(0.45 + 0.005 * i, 3) for i in range(111)]
_CORES_A_CHIP = {"v2": 2, "v3": 2}


def published_seconds(row: Row, planned: Planned) -> float:
    """A step's, from `ms`, else `tf`, else `tok`, else `mfu`; 0 where nothing is said of time.

    `tf` counts 6 FLOPs a token and parameter, without the table that is only looked up, and all
    scores of the attention, those that a causal mask hides as well: 12 · layers · heads · head ·
    length a token.
    """
    chips = planned.devices / _CORES_A_CHIP.get(row.generation, 1)
    if row.ms:
        return row.ms / 1e3
    if row.tf:
        matrices = planned.parameters - planned.embedding
        attention = 12 * row.layers * row.heads * row.head * row.length
        return (6 * matrices + attention) * row.tokens / (row.tf * 1e12 * chips)
    if row.tok:
        return row.tokens / (row.tok * chips)
    if row.mfu:
        peak = planned.devices * planned.peak_flops
        return 6 * planned.parameters * row.tokens / (row.mfu / 100 * peak)
    return 0.0


def error(row: Row, planned: Planned, seconds: float) -> float:
    """Relative; positive where the model is too slow."""
    return seconds / published_seconds(row, planned) - 1


def mean_error(pairs: Iterable[tuple[Row, Planned]], share: float) -> float:
    return mean(abs(error(row, planned, planned.at(share))) for row, planned in pairs)


def best_share(pairs: list[tuple[Row, Planned]]) -> float:
    """The share of the peak with the least mean error; the middle one where several have it."""
    errors = {share: mean_error(pairs, share) for share in _TRIED}
    least = min(errors.values())
    best = [share for share, e in errors.items() if e <= least * (1 + 1e-9)]
    return best[len(best) // 2]


def fitted_shares(pairs: Pairs) -> dict[str, float]:
    """By generation, from the rows that count, or from those apart where there are no others."""
    shares = {}
    for generation in sorted({row.generation for row, _ in pairs.values()}):
        these = [p for p in pairs.values() if p[0].generation == generation]
        shares[generation] = best_share([p for p in these if not p[0].apart] or these)
    return shares


def leaving_one_out(pairs: Pairs) -> dict[str, float]:
    """By row that counts: its error with its generation's constant fitted to the others; where
    there are none, with the mean constant of the other generations."""
    counted = {name: p for name, p in pairs.items() if not p[0].apart}
    errors = {}
    for name, (row, planned) in counted.items():
        others = {n: p for n, p in counted.items() if n != name}
        alike = [p for p in others.values() if p[0].generation == row.generation]
        share = best_share(alike) if alike else mean(fitted_shares(others).values())
        errors[name] = error(row, planned, planned.at(share))
    return errors
