# SPDX-License-Identifier: Apache-2.0
"""What spmd.plan returns: a table of candidates, and each candidate by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_spmd.debug import Table, Text
from torch_spmd.planning import report
from torch_spmd.sharding.spec import PartitionSpec


class PlanRow(NamedTuple):
    """One candidate; bytes are those of one device at the peak, seconds those of a step."""

    on: str
    mesh: str
    fits: bool
    hbm: int
    memory: int
    arguments: int
    gradients: int
    activations: int
    gathered: int
    seconds: float
    low: float
    high: float
    mfu: float
    exposed: float
    wire: dict[str, int]

    @property
    def missing(self) -> int:
        """Bytes that a device has too few; 0 if it fits."""
        return max(0, self.hbm - self.memory)


class Sent(NamedTuple):
    """What one line sends in a step, by kind and axes; bytes of one device."""

    kind: str
    axes: str
    times: int
    wire: int
    line: str


class LargeValues(NamedTuple):
    """Values that are alive at the peak: `number` of one type that one line computes.

    `what` they are: argument, gradient, gathered or activation; `bytes` are those of all on a
    device.
    """

    what: str
    number: int
    bytes: int
    type: str
    sharding: str
    op: str
    line: str


class Operation(NamedTuple):
    """A product, for the roofline: FLOPs per byte, and FLOP/s that it reaches."""

    intensity: float
    flops_per_second: float
    seconds: float


@dataclass
class Candidate:
    """A mesh on a machine, and what a step takes there.

    `largest` has what takes most at the peak, `advice` what to change, in the order of what it
    would save; `placement` where the mesh axes lie on the machine.
    """

    row: PlanRow
    mesh: dict[str, int]
    specs: dict[str, PartitionSpec]
    largest: list[LargeValues]
    advice: list[str]
    placement: list[str]
    peak_flops: float
    efficiency: float
    memory_bandwidth: float
    hfu: float
    collectives: list[Sent]
    _entries: list[Tensor] = field(repr=False)
    _memory: list[Tensor] = field(repr=False)

    def roofline(self) -> list[Operation]:
        """The products of the step, those that take longest first."""
        found = []
        for _start, seconds, flops, moved, _ in torch.cat(self._entries).tolist():
            if flops > 0 and seconds > 0 and moved > 0:
                found.append(Operation(flops / moved, flops / seconds, seconds))
        return sorted(found, key=lambda operation: -operation.seconds)

    def memory_over_time(self) -> tuple[list[float], dict[str, list[int]]]:
        """Seconds from the start of the step, ascending, and the bytes that are held then, by what
        they are held for."""
        times: list[float] = []
        held: dict[str, list[int]] = {what: [] for what in report.PURPOSES}
        begin = 0.0
        for entries, after in zip(self._entries, self._memory):
            starts = torch.cummax(entries[:, 0], 0).values if len(entries) else entries[:, 0]
            times += (starts + begin).tolist()
            for k, what in enumerate(report.PURPOSES):
                held[what] += after[:, k].tolist()
            begin += float((entries[:, 0] + entries[:, 1]).max()) if len(entries) else 0.0
        return times, held

    def plot(self, path: str | None = None) -> Any:
        """The roofline and the memory over time, as a matplotlib figure; `path` saves it.

        Errors: ImportError without matplotlib.
        """
        return report.plot(self, path)

    def text(self) -> Text:
        """The candidate by itself: where its memory goes, what it sends, what to change."""
        return Text(report.details(self))

    __str__ = text


class PlanTable(Table):
    """The candidates, the best first: those that fit by their seconds, then the others.

    `rows` are `PlanRow`s and `candidates` what they are about, in the same order. The note has the
    largest values of the best candidate and what to change. `rich.print(table)` draws it in colour.
    """

    rows: list[PlanRow]
    candidates: list[Candidate]
    parameters: int

    def __init__(self, candidates: Sequence[Candidate], parameters: int) -> None:
        super().__init__(PlanRow._fields, [candidate.row for candidate in candidates])
        self.candidates, self.parameters = list(candidates), parameters
        if candidates:
            self.note = report.details(candidates[0])

    @property
    def best(self) -> Candidate:
        """The first candidate. Errors: ValueError if there is none."""
        if not self.candidates:
            raise ValueError("PlanTable: there is no candidate")
        return self.candidates[0]

    def plot(self, path: str | None = None) -> Any:
        """The best candidate's picture; see `Candidate.plot`."""
        return self.best.plot(path)

    def _shown(self) -> tuple[Sequence[str], list[list[str]]]:
        return report.COLUMNS, [report.cells(row) for row in self.rows]

    def __rich__(self) -> Any:
        return report.rich_table(self)
