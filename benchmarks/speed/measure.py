# SPDX-License-Identifier: Apache-2.0
"""Rows of the table, and how each is measured."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Step = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One line of the table. `prepare` returns what is measured: a function that gives the
    CPU-seconds of one call of ours and, unless the budget is absolute, one that gives eager's.

    `budget` is a ratio if there is an eager side, else a number of `unit`s; None means that the row
    is for information. `elapsed` says that a call does only what is measured, so that its wall time
    is meaningful, too: it shows how well the cores are used.
    """

    name: str
    budget: float | None
    prepare: Callable[[], tuple[Callable[[], float], Callable[[], float] | None]]
    unit: str = "ms"
    warm: int = 3
    pairs: int | None = None  # if a sample takes long
    elapsed: bool = False


@dataclass
class Result:
    """Medians in `unit`s. `median` is the median of the ratio to eager's with its 95 % interval or,
    for absolute budgets, the median of ours. `elapsed` is the ratio of wall times, if known.
    """

    name: str
    unit: str
    ours: float
    eager: float | None
    median: float
    low: float
    high: float
    budget: float | None
    elapsed: float | None

    @property
    def missed(self) -> bool:
        return self.budget is not None and self.low > self.budget


UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9, "MiB": 1 / 2**20, "instr": 1.0}


def cpu_seconds(
    step: Step, calls: int = 1, clock: Callable[[], float] = time.process_time
) -> Callable[[], float]:
    """CPU-seconds per unit of work, of which `step` does `calls`: of all threads, or by another
    clock (`time.thread_time` leaves out what other threads do, such as running programs).
    """

    def timed() -> float:
        before = clock()
        step()
        return (clock() - before) / calls

    return timed


def interval_of_median(samples: list[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval by bootstrap, the same for the same samples."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(samples, k=len(samples))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def by_the_clock(timed: Callable[[], float], seconds: list[float]) -> float:
    """A sample of `timed`; its wall time is added to `seconds`."""
    before = time.perf_counter()
    sample = timed()
    seconds.append(time.perf_counter() - before)
    return sample


def measure(row: Row, pairs: int) -> Result:
    """Interleaved: each pair's ratio is one sample."""
    ours, eager = row.prepare()
    for _ in range(row.warm):
        ours()
        if eager is not None:
            eager()
    mine, other = [], []
    my_clock: list[float] = []
    other_clock: list[float] = []
    for _ in range(row.pairs or pairs):
        if eager is not None:
            other.append(by_the_clock(eager, other_clock))
        mine.append(by_the_clock(ours, my_clock))
    scale = UNITS[row.unit]
    samples = [m / e for m, e in zip(mine, other)] if other else [m * scale for m in mine]
    low, high = interval_of_median(samples)
    return Result(
        name=row.name,
        unit=row.unit,
        ours=statistics.median(mine) * scale,
        eager=statistics.median(other) * scale if other else None,
        median=statistics.median(samples),
        low=low,
        high=high,
        budget=row.budget,
        elapsed=statistics.median(m / e for m, e in zip(my_clock, other_clock))
        if row.elapsed
        else None,
    )
